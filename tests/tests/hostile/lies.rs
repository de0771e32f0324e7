//! Lies: what nobody honest sends, made of the message types themselves.
//!
//! A message type is *asked* what it consists of: [`shapes`] deserializes it from a deserializer
//! that has no input and makes up a value for whatever it is asked for. Every variant of every
//! enum is taken once. So a message or a field that is added is among the lies by itself. What
//! comes out are [`Token`]s in the order of their bytes; [`lies`] changes one of them at a time, or
//! the frame around them.

use annex_shared::wire::MAX_FRAME;
use serde::de::value::U32Deserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, EnumAccess, IntoDeserializer, MapAccess, SeqAccess};
use serde::de::{VariantAccess, Visitor};
use std::collections::BTreeSet;

/// What messages are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// The variant of an enum, of so many.
    Tag(u32, usize),
    /// Whether an optional value follows.
    Present(bool),
    /// How many elements follow.
    Length(u64),
    /// Of so many bits.
    Number(u128, u32),
    Text(String),
    /// Of no message type: the bytes as they are.
    Raw(Vec<u8>),
}

/// A message, and the names of its variants.
#[derive(Clone, Debug)]
pub struct Shape {
    /// `Refused/Full`, say.
    pub name: String,
    pub tokens: Vec<Token>,
}

/// What a number is in an honest message, by the name of its field.
pub type Honest<'a> = &'a dyn Fn(&str) -> u128;

/// One message for each way through the enums and options of a type. The first one of each variant
/// has all that is optional.
pub fn shapes<T: DeserializeOwned>(honest: Honest<'_>) -> Vec<(Shape, T)> {
    let (mut choices, mut all) = (Vec::new(), Vec::new());
    loop {
        let mut inventor =
            Inventor { honest, choices, met: 0, field: "", shape: Shape { name: String::new(), tokens: Vec::new() } };
        let value = T::deserialize(&mut inventor).expect("it is made of what messages are made of");
        all.push((inventor.shape, value));
        choices = inventor.choices;
        // The next way: the last choice that has another one.
        while let Some((taken, of)) = choices.pop() {
            if taken + 1 < of {
                choices.push((taken + 1, of));
                break;
            }
        }
        if choices.is_empty() {
            return all;
        }
    }
}

/// The bytes of a message.
pub fn encode(tokens: &[Token]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for token in tokens {
        match token {
            Token::Tag(n, _) => varint(u128::from(*n), &mut bytes),
            Token::Present(is_there) => bytes.push(u8::from(*is_there)),
            Token::Length(n) => varint(u128::from(*n), &mut bytes),
            Token::Number(n, 8) => bytes.push(*n as u8),
            Token::Number(n, _) => varint(*n, &mut bytes),
            Token::Text(text) => {
                varint(text.len() as u128, &mut bytes);
                bytes.extend(text.as_bytes());
            }
            Token::Raw(raw) => bytes.extend(raw),
        }
    }
    bytes
}

/// With its length before it.
pub fn frame(body: &[u8]) -> Vec<u8> {
    framed(body.len(), body)
}

fn framed(len: usize, body: &[u8]) -> Vec<u8> {
    [&(len as u32).to_le_bytes(), body].concat()
}

/// A text that rewrites screens and forges a line of a log.
pub const FORGED: &str = "\x1b[2J\x1b]0;owned\x07evil\n2026-01-01T00:00:00Z ERROR forged line\r\u{202e}";

/// Every lie that is made of one message: what is odd about it, and its bytes.
pub fn lies(shape: &Shape) -> Vec<(String, Vec<u8>)> {
    let mut all = values(shape);
    all.extend(with_odd(shape, |token| matches!(token, Token::Tag(..))));
    let body = encode(&shape.tokens);
    let mut odd_frame = |what: &str, bytes: Vec<u8>| all.push((format!("{}: {what}", shape.name), bytes));
    odd_frame("one byte more", frame(&[&body[..], &[0]].concat()));
    odd_frame("one byte less", frame(&body[..body.len() - 1]));
    odd_frame("half of it", frame(&body[..body.len() / 2]));
    odd_frame("a length that is one too large", framed(body.len() + 1, &body));
    odd_frame("the largest length", framed(MAX_FRAME as usize, &body));
    odd_frame("a length over the limit", framed(MAX_FRAME as usize + 1, &body));
    odd_frame("the length of all lengths", framed(u32::MAX as usize, &body));
    odd_frame("nothing in it", framed(0, &[]));
    odd_frame("half a header", framed(body.len(), &body)[..2].to_vec());
    // Among them are messages twice: no bytes at all of one token that is missing, say.
    let mut seen = BTreeSet::new();
    all.retain(|(_, bytes)| seen.insert(bytes.clone()));
    all
}

/// Those whose variants are what they should be, and one of whose values is not.
pub fn values(shape: &Shape) -> Vec<(String, Vec<u8>)> {
    with_odd(shape, |token| !matches!(token, Token::Tag(..)))
}

fn with_odd(shape: &Shape, which: impl Fn(&Token) -> bool) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for (at, token) in shape.tokens.iter().enumerate().filter(|(_, token)| which(token)) {
        for odd in odd_values(token) {
            let what = format!("{}: token {at} is {}", shape.name, brief(&odd));
            let mut tokens = shape.tokens.clone();
            tokens[at] = odd;
            all.push((what, frame(&encode(&tokens))));
        }
    }
    all
}

fn odd_values(token: &Token) -> Vec<Token> {
    let overlong = || Token::Raw(vec![0xff; 20]);
    let mut odd = match token {
        Token::Tag(n, of) => {
            let (after, none) = ((n + 1) % *of as u32, *of as u32);
            [0, after, none, 127, u32::MAX].map(|n| Token::Tag(n, *of)).into()
        }
        Token::Present(is_there) => vec![Token::Present(!is_there), Token::Raw(vec![2])],
        Token::Length(n) => [0, n + 1, 1 << 20, 1 << 40, u64::MAX].map(Token::Length).into(),
        Token::Number(n, bits) => {
            let most = u128::MAX >> (128 - bits);
            let odd = [0, 1, n.wrapping_sub(1) & most, n.wrapping_add(1) & most, 1 << (bits - 1), most];
            odd.map(|n| Token::Number(n, *bits)).into()
        }
        Token::Text(_) => {
            let mut odd = [String::new(), FORGED.to_owned(), "n".repeat(20_000)].map(Token::Text).to_vec();
            odd.extend([vec![4, 0xff, 0xfe, 0xc0, 0x80], vec![0xff, 0xff, 0xff, 0xff, 0x0f]].map(Token::Raw));
            odd
        }
        Token::Raw(_) => Vec::new(),
    };
    odd.push(overlong());
    odd.retain(|other| other != token);
    odd
}

fn brief(token: &Token) -> String {
    let text = format!("{token:?}");
    text.chars().take(60).collect()
}

fn varint(mut n: u128, to: &mut Vec<u8>) {
    while n >= 0x80 {
        to.push(n as u8 | 0x80);
        n >>= 7;
    }
    to.push(n as u8);
}

struct Inventor<'a> {
    honest: Honest<'a>,
    /// What was taken where there was a choice, of how many.
    choices: Vec<(usize, usize)>,
    met: usize,
    /// The field that is being made up.
    field: &'static str,
    shape: Shape,
}

impl Inventor<'_> {
    fn choose(&mut self, of: usize) -> usize {
        if self.met == self.choices.len() {
            self.choices.push((0, of));
        }
        self.met += 1;
        self.choices[self.met - 1].0
    }

    fn number(&mut self, bits: u32) -> u128 {
        let value = (self.honest)(self.field) & (u128::MAX >> (128 - bits));
        self.shape.tokens.push(Token::Number(value, bits));
        value
    }

    fn text(&mut self) -> String {
        self.shape.tokens.push(Token::Text(self.field.to_owned()));
        self.field.to_owned()
    }
}

macro_rules! numbers {
    ($($method:ident $visit:ident $of:ty;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            visitor.$visit(self.number(<$of>::BITS) as $of)
        })*
    };
}

/// What no message has so far: the first that does says what is to be made up for it.
macro_rules! unknown {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            Err(de::Error::custom(concat!("no message has had this yet: ", stringify!($method))))
        })*
    };
}

impl<'de> de::Deserializer<'de> for &mut Inventor<'_> {
    type Error = de::value::Error;

    numbers! {
        deserialize_u8 visit_u8 u8;
        deserialize_u16 visit_u16 u16;
        deserialize_u32 visit_u32 u32;
        deserialize_u64 visit_u64 u64;
        deserialize_u128 visit_u128 u128;
    }

    unknown! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_f32 deserialize_f64 deserialize_char deserialize_bytes deserialize_byte_buf deserialize_unit
        deserialize_ignored_any deserialize_identifier
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_string(self.text())
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_string(self.text())
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        let is_there = self.choose(2) == 0;
        self.shape.tokens.push(Token::Present(is_there));
        if is_there { visitor.visit_some(self) } else { visitor.visit_none() }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        self.shape.tokens.push(Token::Length(2));
        visitor.visit_seq(Fields::of(self, 2))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        self.shape.tokens.push(Token::Length(2));
        visitor.visit_map(Fields::of(self, 2))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_seq(Fields::of(self, len))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_seq(Fields::of(self, len))
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_seq(Fields { left: names.len(), names, inventor: self })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let nth = self.choose(variants.len());
        self.shape.tokens.push(Token::Tag(nth as u32, variants.len()));
        if !self.shape.name.is_empty() {
            self.shape.name.push('/');
        }
        self.shape.name.push_str(variants[nth]);
        visitor.visit_enum(Variant { nth: nth as u32, inventor: self })
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The elements of something, by their names if they have any.
struct Fields<'a, 'b> {
    left: usize,
    names: &'static [&'static str],
    inventor: &'a mut Inventor<'b>,
}

impl<'a, 'b> Fields<'a, 'b> {
    fn of(inventor: &'a mut Inventor<'b>, left: usize) -> Fields<'a, 'b> {
        Fields { left, names: &[], inventor }
    }
}

impl<'de> SeqAccess<'de> for Fields<'_, '_> {
    type Error = de::value::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Self::Error> {
        if self.left == 0 {
            return Ok(None);
        }
        if let Some(name) = self.names.get(self.names.len().wrapping_sub(self.left)) {
            self.inventor.field = name;
        }
        self.left -= 1;
        seed.deserialize(&mut *self.inventor).map(Some)
    }
}

impl<'de> MapAccess<'de> for Fields<'_, '_> {
    type Error = de::value::Error;

    fn next_key_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Self::Error> {
        // Two entries have two keys.
        self.inventor.field = if self.left.is_multiple_of(2) { "host" } else { "rack" };
        self.next_element_seed(seed)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Self::Error> {
        seed.deserialize(&mut *self.inventor)
    }
}

struct Variant<'a, 'b> {
    nth: u32,
    inventor: &'a mut Inventor<'b>,
}

impl<'de> EnumAccess<'de> for Variant<'_, '_> {
    type Error = de::value::Error;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), Self::Error> {
        let nth: U32Deserializer<de::value::Error> = self.nth.into_deserializer();
        Ok((seed.deserialize(nth)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, '_> {
    type Error = de::value::Error;

    fn unit_variant(self) -> Result<(), Self::Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Self::Error> {
        seed.deserialize(self.inventor)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_seq(Fields::of(self.inventor, len))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_seq(Fields { left: names.len(), names, inventor: self.inventor })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use annex_fabric::verbs::protocol;
    use annex_shared::wire::{Event, Request, encode_frame};
    use serde::Serialize;

    /// Whoever has no lies of a message attacks it with none.
    fn are_written_alike<T: Serialize + DeserializeOwned>(variants: usize) {
        let shapes = shapes::<T>(&|_| 200);
        let tags: BTreeSet<_> = shapes.iter().map(|(shape, _)| shape.name.split('/').next()).collect();
        assert_eq!(tags.len(), variants, "{tags:?}");
        for (shape, value) in &shapes {
            assert_eq!(frame(&encode(&shape.tokens)), encode_frame(value).expect("a valid message"), "{shape:?}");
        }
    }

    #[test]
    fn messages_are_made_up_as_they_are_written() {
        are_written_alike::<Request>(4);
        are_written_alike::<Event>(7);
        are_written_alike::<protocol::Request>(4);
    }

    #[test]
    fn no_lie_is_the_message_itself() {
        for (shape, _) in shapes::<Event>(&|_| 200) {
            let (honest, lies) = (frame(&encode(&shape.tokens)), lies(&shape));
            assert!(lies.len() > 5 && lies.iter().all(|(_, lie)| *lie != honest), "{shape:?}");
        }
    }
}
