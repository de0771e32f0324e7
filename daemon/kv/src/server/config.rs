//! CONFIG: a table of parameters under Redis' names, with the values tools ask for.
//!
//! Some are in force here ([`Live`] is what the code reads), some are the storage engine's and are
//! handed to it, and some belong to things this server does not have: those have the one value that
//! says so and can be set to nothing else.

use super::client::Client;
use super::parameters::{self, Kind, Parameter};
use crate::call::Failure;
use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::time::Duration;

/// Values that are read all the time.
#[derive(Default)]
pub struct Live {
    pub max_bulk: Cell<u64>,
    pub max_query: Cell<u64>,
    pub max_clients: Cell<u64>,
    /// Bytes that all clients may make annexd hold. 0: as many as they like.
    pub client_memory: Cell<usize>,
    /// Zero: never.
    pub idle_timeout: Cell<Duration>,
    pub hard_output: Cell<u64>,
    pub soft_output: Cell<u64>,
    pub soft_time: Cell<Duration>,
    /// `None`: nothing is logged.
    pub slow: Cell<Option<Duration>>,
    pub slow_entries: Cell<usize>,
    /// `None`: not monitored.
    pub latency: Cell<Option<Duration>>,
    pub tracks_latency: Cell<bool>,
    pub protected: Cell<bool>,
    has_password: Cell<bool>,
}

/// Asked before a parameter takes a new value; an error says why it can't.
pub type OnChange = Box<dyn Fn(&str, &str) -> Result<(), String>>;

pub struct Config {
    pub live: Live,
    values: RefCell<Vec<String>>,
    on_change: RefCell<Option<OnChange>>,
}

/// Why CONFIG SET refused.
pub enum SetError {
    Unknown(String),
    Refused { parameter: String, why: String },
}

impl Default for Config {
    fn default() -> Config {
        let values = parameters::TABLE.iter().map(|parameter| parameter.default.to_string()).collect();
        let config = Config { live: Live::default(), values: RefCell::new(values), on_change: RefCell::default() };
        config.refresh();
        config
    }
}

impl Config {
    /// Who is asked about new values from now on.
    pub fn ask(&self, on_change: OnChange) {
        self.on_change.replace(Some(on_change));
    }

    /// Sets a value at start, when nothing is immutable yet. False: there is no such parameter.
    pub fn start_with(&self, name: &str, value: impl Into<String>) -> bool {
        let Some(index) = parameters::find(name) else { return false };
        self.values.borrow_mut()[index] = value.into();
        self.refresh();
        true
    }

    pub fn value(&self, name: &str) -> String {
        self.get(name).unwrap_or_default()
    }

    /// The parameters' names, aliases too.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        parameters::TABLE.iter().flat_map(|parameter| [Some(parameter.name), parameter.alias]).flatten()
    }

    pub fn get(&self, name: &str) -> Option<String> {
        parameters::find(name).map(|index| self.values.borrow()[index].clone())
    }

    /// Sets all of them or none.
    pub fn set(&self, pairs: &[(String, String)]) -> Result<(), SetError> {
        let mut found: Vec<(usize, &Parameter, &str)> = Vec::with_capacity(pairs.len());
        let unknown = pairs.iter().find(|(name, _)| parameters::find(name).is_none());
        if let Some((name, _)) = unknown {
            return Err(SetError::Unknown(name.clone()));
        }
        for (name, value) in pairs {
            let refused = |why: &str| SetError::Refused { parameter: name.clone(), why: why.into() };
            let Some(index) = parameters::find(name) else { continue };
            let parameter = &parameters::TABLE[index];
            if parameter.immutable {
                return Err(refused("can't set immutable config"));
            }
            if found.iter().any(|(known, ..)| *known == index) {
                return Err(refused("duplicate parameter"));
            }
            found.push((index, parameter, value));
        }
        let mut changed = Vec::with_capacity(found.len());
        for (index, parameter, value) in found {
            let refused = |why: String| SetError::Refused { parameter: parameter.name.into(), why };
            let old = self.values.borrow()[index].clone();
            let new = parameter.kind.parse(value, &old).map_err(refused)?;
            changed.push((index, parameter.name, old, new));
        }
        for (done, (_, name, old, new)) in changed.iter().enumerate() {
            let asked = self.on_change.borrow().as_ref().filter(|_| old != new).map_or(Ok(()), |ask| ask(name, new));
            if let Err(why) = asked {
                self.take_back(&changed[..done]);
                return Err(SetError::Refused { parameter: (*name).into(), why });
            }
        }
        for (index, _, _, new) in changed {
            self.values.borrow_mut()[index] = new;
        }
        self.refresh();
        Ok(())
    }

    /// Whoever agreed to a new value before another was refused gets the old one back.
    fn take_back(&self, changed: &[(usize, &'static str, String, String)]) {
        for (_, name, old, new) in changed.iter().filter(|(_, _, old, new)| old != new) {
            let asked = self.on_change.borrow().as_ref().map_or(Ok(()), |ask| ask(name, old));
            if let Err(why) = asked {
                tracing::warn!("can't take {name} back from {new} to {old}: {why}");
            }
        }
    }

    pub fn needs_password(&self) -> bool {
        self.live.has_password.get()
    }

    /// Whether this user may have the connection. Takes the same time wherever a wrong password
    /// differs.
    pub fn authenticates(&self, user: &[u8], password: &[u8]) -> bool {
        let expected = self.value("requirepass");
        let is_right = !self.needs_password() || same(expected.as_bytes(), password);
        is_right && user == b"default"
    }

    /// DEBUG, and loading modules, is for those whom the configuration names.
    pub fn allows(&self, command: &str, client: &Client) -> Result<(), Failure> {
        let (command, option) = match command {
            "debug" => ("DEBUG", "enable-debug-command"),
            "module|load" | "module|loadex" | "module|unload" => ("MODULE", "enable-module-command"),
            _ => return Ok(()),
        };
        match self.value(option).as_str() {
            "yes" => Ok(()),
            "local" if client.peer.is_local() => Ok(()),
            _ => Err(Failure(
                format!(
                    "ERR {command} command not allowed. If the {option} option is set to \"local\", you can run it from a local \
                     connection, otherwise you need to set this option in the configuration file, and then restart the server."
                )
                .into(),
            )),
        }
    }

    fn refresh(&self) {
        let number = |name: &str| self.value(name).parse::<i64>().unwrap_or(0);
        let unsigned = |name: &str| self.value(name).parse::<u64>().unwrap_or(0);
        let live = &self.live;
        live.max_bulk.set(unsigned("proto-max-bulk-len"));
        live.max_query.set(unsigned("client-query-buffer-limit"));
        live.max_clients.set(unsigned("maxclients"));
        let client_memory = self.value("maxmemory-clients");
        let part = client_memory.strip_suffix('%').and_then(|percent| percent.parse::<u64>().ok());
        live.client_memory.set(match part {
            Some(percent) => (unsigned("maxmemory") / 100 * percent) as usize,
            None => unsigned("maxmemory-clients") as usize,
        });
        live.idle_timeout.set(Duration::from_secs(unsigned("timeout")));
        live.slow.set(u64::try_from(number("slowlog-log-slower-than")).ok().map(Duration::from_micros));
        live.slow_entries.set(unsigned("slowlog-max-len") as usize);
        let latency = unsigned("latency-monitor-threshold");
        live.latency.set((latency > 0).then(|| Duration::from_millis(latency)));
        live.tracks_latency.set(self.value("latency-tracking") == "yes");
        live.protected.set(self.value("protected-mode") == "yes");
        live.has_password.set(!self.value("requirepass").is_empty());
        let limits = self.value("client-output-buffer-limit");
        let mut normal = limits.split(' ').skip(1).map(|limit| limit.parse::<u64>().unwrap_or(0));
        live.hard_output.set(normal.next().unwrap_or(0));
        live.soft_output.set(normal.next().unwrap_or(0));
        live.soft_time.set(Duration::from_secs(normal.next().unwrap_or(0)));
    }
}

/// Whether two secrets are the same, in a time that depends on their lengths only.
fn same(expected: &[u8], given: &[u8]) -> bool {
    let differing = given.iter().enumerate().fold(0u8, |differing, (at, byte)| {
        differing | (byte ^ expected.get(at % expected.len().max(1)).copied().unwrap_or(0))
    });
    std::hint::black_box(differing) == 0 && expected.len() == given.len()
}

impl Kind {
    /// The value in the form CONFIG GET shows, or why it can't be one.
    fn parse(&self, text: &str, old: &str) -> Result<String, String> {
        match self {
            Kind::Bool => match parameters::c_string(text).to_ascii_lowercase().as_str() {
                flag @ ("yes" | "no") => Ok(flag.into()),
                _ => Err("argument must be 'yes' or 'no'".into()),
            },
            Kind::Integer(least, most) => {
                let number = crate::text::integer::parse(text.as_bytes());
                let number = number.ok_or("argument couldn't be parsed into an integer")?;
                within(number, *least, *most)
            }
            Kind::Clamped(least, most) => {
                let number = crate::text::integer::parse(text.as_bytes());
                let number = number.ok_or("argument couldn't be parsed into an integer")?;
                within(number, 0, i64::from(i32::MAX))?;
                Ok(number.clamp(*least, *most).to_string())
            }
            Kind::Memory(least, most) => {
                let number = parameters::memory(text).ok_or("argument must be a memory value")?;
                within(number, *least, *most)
            }
            Kind::MemoryOrPercent => {
                let percent = text.strip_suffix('%').and_then(|text| crate::text::integer::parse(text.as_bytes()));
                // To Redis a size beyond the greatest number is negative, and so a percentage.
                let number = match percent.filter(|percent| *percent >= 0) {
                    Some(percent) => -percent,
                    None => parameters::memory(text).ok_or("argument must be a memory or percent value")? as i64,
                };
                match number {
                    ..-100 => Err("percentage argument must be less or equal to 100".into()),
                    -100..0 => Ok(format!("{}%", -number)),
                    bytes => Ok(bytes.to_string()),
                }
            }
            Kind::Enum(names) => {
                let text = parameters::c_string(text);
                let found = names.iter().find(|name| name.eq_ignore_ascii_case(text));
                found
                    .map(|name| name.to_string())
                    .ok_or_else(|| format!("argument(s) must be one of the following: {}", names.join(", ")))
            }
            Kind::Text => Ok(text.into()),
            Kind::OutputLimits => parameters::output_limits(text, old),
            Kind::Percentiles => parameters::percentiles(text),
            Kind::Fixed(_) if text == old => Ok(old.into()),
            Kind::Fixed(why) => Err((*why).into()),
        }
    }
}

fn within<T: PartialOrd + Display>(number: T, least: T, most: T) -> Result<String, String> {
    if number < least || number > most {
        return Err(format!("argument must be between {least} and {most} inclusive"));
    }
    Ok(number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(config: &Config, pairs: &[(&str, &str)]) -> Result<(), String> {
        let pairs: Vec<_> = pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        config.set(&pairs).map_err(|error| match error {
            SetError::Unknown(name) => name,
            SetError::Refused { parameter, why } => format!("{parameter}: {why}"),
        })
    }

    #[test]
    fn the_defaults_are_values_that_could_be_set() {
        for parameter in parameters::TABLE {
            assert_eq!(parameter.kind.parse(parameter.default, parameter.default).as_deref(), Ok(parameter.default));
        }
    }

    #[test]
    fn several_parameters_are_set_together_or_not_at_all() {
        let config = Config::default();
        assert!(set(&config, &[("timeout", "5"), ("maxclients", "zero")]).is_err());
        assert_eq!(config.value("timeout"), "0");
        assert_eq!(set(&config, &[("timeout", "5"), ("maxclients", "7")]), Ok(()));
        assert_eq!((config.value("timeout").as_str(), config.live.max_clients.get()), ("5", 7));
    }

    #[test]
    fn the_engine_gets_its_old_value_back_if_another_parameter_is_refused() {
        let config = Config::default();
        let asked = std::rc::Rc::new(RefCell::new(Vec::new()));
        let seen = asked.clone();
        config.ask(Box::new(move |name, value| {
            seen.borrow_mut().push(format!("{name}={value}"));
            if name == "maxmemory-policy" { Err("no".into()) } else { Ok(()) }
        }));
        let result = set(&config, &[("maxmemory", "1gb"), ("maxmemory-policy", "allkeys-lru")]);
        assert_eq!(result, Err("maxmemory-policy: no".into()));
        assert_eq!(*asked.borrow(), ["maxmemory=1073741824", "maxmemory-policy=allkeys-lru", "maxmemory=0"]);
    }

    #[test]
    fn only_the_right_password_authenticates() {
        let config = Config::default();
        config.start_with("requirepass", "secret");
        assert!(config.authenticates(b"default", b"secret"));
        for wrong in ["", "secre", "secrets", "Secret", "secretsecret"] {
            assert!(!config.authenticates(b"default", wrong.as_bytes()), "{wrong}");
        }
        assert!(!config.authenticates(b"other", b"secret"));
    }
}
