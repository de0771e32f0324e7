//! Which keys a configuration has, asked of serde: no list of keys is kept by hand.
//!
//! A type's `Deserialize` names the fields that it expects of a table. So a deserializer that leads
//! to one table and notes what is expected there finds all keys, one table after the other. It
//! holds no values: each walk ends with an error, and what was noted on the way is the result.

use serde::de::value::{Error, StrDeserializer};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;
use std::cell::Cell;
use std::collections::BTreeSet;

type Fields = &'static [&'static str];

/// All keys of a configuration, with the tables they are in: `pool.donor.address`.
pub fn keys<T: DeserializeOwned>() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut unseen: Vec<Vec<&'static str>> = vec![Vec::new()];
    while let Some(way) = unseen.pop() {
        let fields = Cell::new(None);
        // Always an error, see above.
        let _ = T::deserialize(Walk { way: &way, fields: &fields });
        match fields.get() {
            Some(fields) => unseen.extend(fields.iter().map(|field| [&way[..], &[*field]].concat())),
            None => drop(found.insert(way.join("."))),
        }
    }
    found
}

/// Leads `way` down from a table, and notes the fields of the one at its end.
#[derive(Clone, Copy)]
struct Walk<'a> {
    way: &'a [&'static str],
    fields: &'a Cell<Option<Fields>>,
}

fn end() -> Error {
    serde::de::Error::custom("the walk is over")
}

impl<'de> Deserializer<'de> for Walk<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: Fields,
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.way {
            [] => {
                self.fields.set(Some(fields));
                Err(end())
            }
            [_, ..] => visitor.visit_map(self),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(self)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(end())
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct tuple tuple_struct map enum identifier ignored_any
    }
}

impl<'de> MapAccess<'de> for Walk<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let key: StrDeserializer<'_, Error> = self.way[0].into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(Walk { way: &self.way[1..], ..*self })
    }
}

impl<'de> SeqAccess<'de> for Walk<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        seed.deserialize(*self).map(Some)
    }
}
