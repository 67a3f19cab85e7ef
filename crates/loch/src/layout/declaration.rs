//! The declaration of a table: the fields that every table has, and the options of its engine.
//!
//! In TOML both stand side by side. The engine defines its fields ([`loch_engines::registry`]). A
//! field that the engine does not have is refused here, with the names of the engines that have it.

use std::collections::BTreeSet;
use std::fmt;

use loch_engines::registry::{UnknownEngine, names};
use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde::{Serialize, Serializer, ser};
use toml::Table as Fields;

use crate::{ByteSize, Engine, Error, Result};

/// The declaration of a table. It is the same on every node of a cluster, and fixed once the region
/// is made.
///
/// ```
/// use loch::engines::herd;
/// use loch::{Engine, TableConfig};
/// let options = herd::Options { mode: Some(herd::Mode::Store), ..Default::default() };
/// let table = TableConfig { workers: Some(2), ..TableConfig::new("sessions", options) };
/// let text = "name = 'sessions'\nengine = 'herd'\nmode = 'store'\nworkers = 2";
/// assert_eq!(TableConfig::from_toml(text)?, table);
/// # Ok::<(), loch::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TableConfig {
    /// Its name: 1 to 48 bytes.
    pub name: String,
    /// Its engine, which says who does the work of an operation, and the engine's own options.
    /// Default `nessie`.
    ///
    /// | `engine` | |
    /// | --- | --- |
    /// | `nessie` | the client alone |
    /// | `nessie-server` | workers of the node that owns the key |
    /// | `nessie-hybrid` | GET: the client; all else: workers. Without filter bits, cache and multiple READs, as in the paper |
    /// | `nessie-hybrid+` | the same, and with these as they are declared here |
    /// | `herd` | workers, from their own memory: values are gone when the node's process ends |
    /// | `pilaf` | GET: the client; all else: one worker a node, which may keep a log |
    /// | `kv-direct` | workers, which compute on values as well: see [`Lambda`](crate::Lambda). Values are gone when the node's process ends |
    pub engine: Engine,
    /// Its share of the node's memory, in bytes. Tables without a share divide the rest equally.
    pub memory: Option<ByteSize>,
    /// Bytes of the longest value. Default 64 MiB, or a quarter of the table's data on a node if
    /// that is less. A request slot in memory has room for such a value and 256 bytes of key; in
    /// tables with such slots the default is what an eighth of the table's memory has room for.
    /// With `herd` a key and its value have up to 952 bytes together.
    pub value_max: Option<ByteSize>,
    /// Workers of each node that serve the table, 1 to 256, for engines with workers. Default 1.
    /// `pilaf` has one.
    pub workers: Option<u16>,
    /// Requests that a client has under way at one worker, 1 to 256, for engines with workers.
    /// Default 8.
    pub window: Option<u16>,
    /// Clients of each node that can have the table open at a time, for engines with workers, since
    /// each client takes memory. Default 64, or the node's `sessions` if that is less. Only
    /// sessions with such low numbers can open the table: if other tables take many sessions, give
    /// this the node's number.
    pub sessions: Option<u32>,
}

/// The fields that every table has.
#[derive(Default, Serialize)]
struct Common {
    name: Option<String>,
    memory: Option<ByteSize>,
    value_max: Option<ByteSize>,
    workers: Option<u16>,
    window: Option<u16>,
    sessions: Option<u32>,
}

/// The field that names the engine, and the engine of a table that names none.
const ENGINE: &str = "engine";
const ENGINE_DEFAULT: &str = "nessie";
/// The name of a table whose declaration has none.
const NAME_DEFAULT: &str = "default";

/// The bench knows this name; the error says how such a table is declared.
const PUBLISHED: &str = "nessie-published";

impl Default for TableConfig {
    fn default() -> Self {
        Self::new(NAME_DEFAULT, plain(ENGINE_DEFAULT))
    }
}

impl TableConfig {
    /// A table of that name, with defaults for everything else.
    pub fn new(name: impl Into<String>, engine: impl Into<Engine>) -> Self {
        Self {
            name: name.into(),
            engine: engine.into(),
            memory: None,
            value_max: None,
            workers: None,
            window: None,
            sessions: None,
        }
    }

    /// Reads the declaration of one table. Keys that are not given have their defaults.
    ///
    /// # Errors
    /// [`Error::Config`] that names the field.
    pub fn from_toml(text: &str) -> Result<Self> {
        toml::from_str(text).map_err(|error| Error::config("TOML", error.to_string()))
    }

    /// Sets one field, by its name in TOML. Other fields keep their values.
    ///
    /// # Errors
    /// [`Error::Config`] if tables of its engine have no such field, the value is not allowed, or
    /// the engine that is set does not have the fields that were set before.
    ///
    /// ```
    /// let mut table = loch::TableConfig::default();
    /// table.set("engine", "pilaf")?;
    /// table.set("index_slots", 4096)?;
    /// assert!(table.set("mode", "store").unwrap_err().to_string().contains("herd"));
    /// # Ok::<(), loch::Error>(())
    /// ```
    pub fn set(&mut self, field: &str, value: impl Into<toml::Value>) -> Result<()> {
        let unwritable = |error: toml::ser::Error| Error::config("table", error.to_string());
        let mut fields = self.fields().map_err(unwritable)?;
        fields.insert(field.into(), value.into());
        let read = Self::deserialize(fields);
        let wrong = |error: toml::de::Error| error.message().to_owned();
        *self = read.map_err(|error| Error::config("table", wrong(error)))?;
        Ok(())
    }

    /// The fields that differ from their defaults.
    fn fields(&self) -> Result<Fields, toml::ser::Error> {
        let Self { name, memory, value_max, workers, window, sessions, .. } = self.clone();
        let common = Common { name: Some(name), memory, value_max, workers, window, sessions };
        let mut fields = Fields::try_from(&common)?;
        fields.insert(ENGINE.into(), self.engine.name().into());
        let plain = Fields::try_from(plain(self.engine.name()))?;
        let own = Fields::try_from(&self.engine)?.into_iter();
        fields.extend(own.filter(|(field, value)| plain.get(field) != Some(value)));
        Ok(fields)
    }

    /// A table whose engine has this name and these own fields.
    fn of(common: Common, engine: Option<String>, own: Fields) -> Result<Self, String> {
        let engine = engine.unwrap_or_else(|| ENGINE_DEFAULT.into());
        if engine == PUBLISHED {
            return Err(
                "engine nessie-published is for `loch bench`; a table has engine = \"nessie\" \
                        and protocol = \"published\""
                    .into(),
            );
        }
        let plain: Engine = engine.parse().map_err(|unknown: UnknownEngine| unknown.to_string())?;
        let known = known_fields(&plain);
        if let Some(unknown) = own.keys().find(|field| !known.contains(field)) {
            return Err(for_others(unknown, &engines_with(unknown), &engine));
        }
        let read = Engine::read(&engine, own).expect("it is one of the registry");
        let engine = read.map_err(|error| error.message().to_owned())?;
        let Common { name, memory, value_max, workers, window, sessions } = common;
        let name = name.unwrap_or_else(|| NAME_DEFAULT.into());
        Ok(Self { name, engine, memory, value_max, workers, window, sessions })
    }
}

/// An engine of the registry, with default options.
fn plain(name: &str) -> Engine {
    name.parse().expect("it is one of the registry")
}

/// The error for a field that only tables of `others` have, in a table of `engine`.
pub(crate) fn for_others(field: &str, others: &[&str], engine: &str) -> String {
    let way_out = match others {
        [other] => format!("engine = {other:?}"),
        _ => "one of those engines".into(),
    };
    let others = others.join(", ");
    // What users of the field want is there, by another name.
    let also = match (engine, field) {
        ("herd", "eviction") => " (herd evicts in its own way, unless its mode is \"store\")",
        _ => "",
    };
    format!(
        "{field} is for {others}; this table's engine is {engine}: remove {field}{also}, or give the \
         table {way_out}"
    )
}

/// The names of all fields, also of those without a value.
fn known_fields(told: &impl Serialize) -> Vec<String> {
    match serde_json::to_value(told) {
        Ok(serde_json::Value::Object(fields)) => fields.into_iter().map(|(name, _)| name).collect(),
        _ => unreachable!("it has fields, and they can be written"),
    }
}

/// The names of the fields that tables have, of one engine or all.
pub(crate) fn field_names() -> BTreeSet<String> {
    let of_engines = names().flat_map(|name| known_fields(&plain(name)));
    let common = known_fields(&Common::default()).into_iter().chain([ENGINE.to_owned()]);
    common.chain(of_engines).collect()
}

/// The names of the engines that have a field.
fn engines_with(field: &str) -> Vec<&'static str> {
    let knows = |name: &&str| known_fields(&plain(name)).iter().any(|known| known == field);
    names().filter(knows).collect()
}

impl Serialize for TableConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.fields().map_err(ser::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TableConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Declaration)
    }
}

/// Reads the fields of a table one by one, so that an error names the field's line.
struct Declaration;

impl<'de> Visitor<'de> for Declaration {
    type Value = TableConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the declaration of a table")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<TableConfig, A::Error> {
        let (mut common, mut engine, mut own) = (Common::default(), None, Fields::new());
        while let Some(field) = fields.next_key::<String>()? {
            match field.as_str() {
                ENGINE => engine = Some(fields.next_value()?),
                "name" => common.name = Some(fields.next_value()?),
                "memory" => common.memory = Some(fields.next_value()?),
                "value_max" => common.value_max = Some(fields.next_value()?),
                "workers" => common.workers = Some(fields.next_value()?),
                "window" => common.window = Some(fields.next_value()?),
                "sessions" => common.sessions = Some(fields.next_value()?),
                _ => {
                    let value = fields.next_value_seed(Own(&field))?;
                    own.insert(field, value);
                }
            }
        }
        let name = format!("{:?}", common.name.as_deref().unwrap_or(NAME_DEFAULT));
        TableConfig::of(common, engine, own)
            .map_err(|problem| de::Error::custom(format!("table {name}: {problem}")))
    }
}

/// Reads the value of an engine's own field. The table's engine may not be known yet, so the value
/// has to be one that some engine with such a field takes.
struct Own<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Own<'_> {
    type Value = toml::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<toml::Value, D::Error> {
        let Self(field) = self;
        let engines = engines_with(field);
        if engines.is_empty() {
            let names: Vec<_> = field_names().into_iter().collect();
            return Err(de::Error::custom(format!(
                "no table has a field {field}; tables have {}",
                names.join(", ")
            )));
        }
        let value = toml::Value::deserialize(deserializer)?;
        let mut refusals = engines.iter().map(|engine| refusal(engine, field, &value));
        match refusals.next().flatten() {
            Some(refusal) if refusals.all(|other| other.is_some()) => {
                // The words that are allowed are only named to one who writes another word.
                let word = toml::Value::String(value.to_string());
                let of_word = self::refusal(engines[0], field, &word);
                let names_words = |refusal: &String| refusal.starts_with("unknown variant");
                let refusal =
                    of_word.filter(|of| !value.is_str() && names_words(of)).unwrap_or(refusal);
                Err(de::Error::custom(format!("{field}: {refusal}")))
            }
            _ => Ok(value),
        }
    }
}

/// Why an engine does not take this value of one of its fields; `None` if it does.
fn refusal(engine: &str, field: &str, value: &toml::Value) -> Option<String> {
    let alone = Fields::from_iter([(field.to_owned(), value.clone())]);
    let read = Engine::read(engine, alone)?;
    read.err().map(|error| error.message().to_owned())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use loch_engines::nessie::options::LayoutOptions;
    use loch_engines::{nessie, pilaf};

    use super::*;

    #[test]
    fn an_option_of_another_engine_is_refused_by_its_name_whatever_it_says() {
        for (engine, field, words) in [
            ("herd", "ways = 3", "ways is for nessie, nessie-server, nessie-hybrid"),
            ("kv-direct", "eviction = 'sieve'", "eviction is for nessie, nessie-server"),
            ("herd", "eviction = 'sieve'", "remove eviction (herd evicts in its own way"),
            ("nessie-server", "log = '/l'", "or give the table engine = \"pilaf\""),
            ("nessie-server", "cache = true", "cache is for nessie, nessie-hybrid"),
            ("pilaf", "mode = 'store'", "mode is for herd"),
            ("herd", "protocol = 'loch'", "protocol is for nessie;"),
            ("pilaf", "previous_versions = true", "previous_versions is for nessie;"),
            (
                "herd",
                "index_ratio = 0.5",
                "index_ratio is for kv-direct; this table's engine is herd",
            ),
            ("kv-direct", "index_slots = 64", "remove index_slots, or give the table one of those"),
            ("kv-direct", "mode = 'cache'", "mode is for herd"),
            ("pilau", "ways = 3", "there is no engine \"pilau\": choose one of nessie, "),
            ("nessie-published", "", "protocol = \"published\""),
        ] {
            let error = TableConfig::from_toml(&format!("engine = '{engine}'\n{field}"));
            let error = error.unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("default"), "{words}: {error}");
        }
        let error = TableConfig::from_toml("ways = 2\nplus = true").unwrap_err().to_string();
        assert!(error.contains("no table has a field plus") && error.contains("line 2"), "{error}");
        assert!(error.contains(" engine, ") && error.contains(" eviction, "), "{error}");
        assert!(error.contains(" name, ") && error.contains(" ways"), "{error}");
    }

    #[test]
    fn a_wrong_value_of_an_engines_option_names_the_field_and_its_line() {
        for (engine, option) in [
            ("nessie", "ways = 'x'"),
            ("nessie", "ways = 300"),
            ("nessie-server", "ways = -1"),
            ("nessie-hybrid", "cache = 1"),
            ("herd", "mode = 'STORE'"),
            ("herd", "mode = true"),
            ("nessie", "eviction = true"),
            ("nessie", "protocol = 3"),
            ("pilaf", "sync = 1"),
            ("kv-direct", "key_bytes = 70000"),
            ("kv-direct", "tuned_for = { key_bytes = 8 }"),
            ("kv-direct", "functions = [{ number = 1 }]"),
            ("example", "entry_bytes = 'x'"),
        ] {
            let (field, value) = option.split_once(" = ").unwrap();
            let is_choice = ["eviction", "mode", "protocol"].contains(&field);
            let error = TableConfig::from_toml(&format!("engine = '{engine}'\n{option}"));
            let error = error.unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains(&format!("{field}: ")), "{error}");
            assert_eq!(error.contains("unknown variant"), is_choice, "{error}");
            let value = toml::from_str::<Fields>(&format!("v = {value}")).unwrap().remove("v");
            let error = TableConfig::default().set(field, value.unwrap()).unwrap_err().to_string();
            assert!(error.contains(&format!("{field}: ")), "{error}");
        }
    }

    #[test]
    fn a_declaration_that_cannot_be_written_is_an_error() {
        let layout = LayoutOptions { index_slots: Some(u64::MAX), ..Default::default() };
        let options = nessie::options::Options { layout, ..Default::default() };
        let error = TableConfig::new("t", options).set("ways", 3).unwrap_err();
        assert!(error.to_string().contains("table"), "{error}");
        let log = Some(OsString::from_vec(vec![0xff]).into());
        let options = pilaf::Options { log, ..Default::default() };
        assert!(toml::to_string(&TableConfig::new("t", options)).is_err());
    }

    #[test]
    fn a_declaration_is_read_back_as_written_for_every_engine() {
        for text in [
            "",
            "name = 'a'\ncache = true\nprotocol = 'published'\nprevious_versions = false\nways = 2",
            "engine = 'nessie-server'\nindex_slots = 64\nworkers = 2\nwindow = 3\nsessions = 4",
            "engine = 'nessie-hybrid+'\ncache = false",
            "engine = 'herd'\nmode = 'store'\nrequests = 'send'\nmemory = '1GiB'",
            "engine = 'pilaf'\nlog = '/l'\nsync = true\nvalue_max = 1000",
            "engine = 'kv-direct'\nfunctions = [{ number = 1, path = 'f.wasm' }]\n\
             tuned_for = { key_bytes = 8, value_bytes = 8, utilisation = 0.5 }",
        ] {
            let table = TableConfig::from_toml(text).unwrap();
            let written = toml::to_string(&table).unwrap();
            assert_eq!(TableConfig::from_toml(&written).unwrap(), table, "{written}");
        }
    }
}
