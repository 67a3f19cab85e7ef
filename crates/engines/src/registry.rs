//! The list of all engines, one line each. All code that depends on the set of engines follows from
//! this list.

use std::ops::Range;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;

use loch_fabric::{Buf, MailboxShape, VerbCount};
use serde::de::value::MapDeserializer;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::engine::{Engine, FunctionConfig, LogConfig, Needs, Place, Plan, Sizes, Workers};
use crate::error::{EngineError, LayoutError};
use crate::kv::{Kv, NeedsSession};
use crate::nessie::hash::TableMap;
use crate::nessie::{self, AnyClient};
use crate::net::{Access, Connect, Net};
use crate::operation::{Batch, Done, Operation, Outcome};
use crate::region::{TableEntry, TableParams};
use crate::requests::mailboxes::MailedRequests;
use crate::requests::{RequestMap, Service};
use crate::room::Room;
use crate::serve::{Housekeeper, WorkerError, WorkerHost};

/// Generates the enums over all engines, each with one variant for an engine, and `by_engine!`,
/// which does the same with whatever engine it is. A line with `#[cfg(...)]` is there only in
/// builds that have the engine. The first token is a dollar sign, for `by_engine!`.
macro_rules! engines {
    ($d:tt $($(#[doc = $doc:literal])* $(#[cfg($cfg:meta)])? $variant:ident: $engine:ty,)*) => {
        /// The number of an engine.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum EngineId {
            $($(#[doc = $doc])* $(#[cfg($cfg)])? $variant = <$engine>::ID,)*
        }

        /// An engine, with the options that a table of it was declared with.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Options {
            $($(#[doc = $doc])* $(#[cfg($cfg)])? $variant(<$engine as Engine>::Options),)*
        }

        /// The addresses of a table's parts, whatever its engine.
        #[derive(Clone)]
        pub enum Map {
            $($(#[doc = $doc])* $(#[cfg($cfg)])? $variant(<$engine as Engine>::Map),)*
        }

        /// The state that the workers of a table on one node share.
        #[derive(Clone)]
        pub enum Shared {
            $($(#[doc = $doc])* $(#[cfg($cfg)])? $variant(Arc<<$engine as Workers>::Shared>),)*
        }

        /// A client of a table, whatever its engine.
        pub enum Client<N: Net> {
            $($(#[doc = $doc])* $(#[cfg($cfg)])? $variant(<$engine as Engine>::Client<N>),)*
            /// A client without a session, of a table in which even a GET is a request.
            NeedsSession(NeedsSession<N::Waiting>),
        }

        impl EngineId {
            /// All engines.
            pub const ALL: &[Self] = &[$($(#[cfg($cfg)])? Self::$variant,)*];
        }

        impl Options {
            /// The options' engine.
            pub fn engine(&self) -> EngineId {
                match self {
                    $($(#[cfg($cfg)])? Self::$variant(_) => EngineId::$variant,)*
                }
            }

            /// Reads the fields of a declaration for the engine called `name`; `None` if there is
            /// no such engine.
            pub fn read<'de, D: Deserializer<'de>>(
                name: &str,
                fields: D,
            ) -> Option<Result<Self, D::Error>> {
                $($(#[cfg($cfg)])? if <$engine>::NAMES.contains(&name) {
                    let options = <$engine as Engine>::Options::deserialize(fields);
                    return Some(options.map(|it| Self::$variant(<$engine>::named(it, name))));
                })*
                None
            }
        }

        impl Map {
            /// As [`Engine::map`].
            ///
            /// # Errors
            /// As [`Engine::map`].
            pub fn new(
                engine: EngineId,
                params: &TableParams,
                places: &[Place],
            ) -> Result<Self, LayoutError> {
                Ok(match engine {
                    $($(#[cfg($cfg)])?
                    EngineId::$variant => Self::$variant(<$engine>::map(params, places)?),)*
                })
            }

            /// The table's engine.
            pub fn engine(&self) -> EngineId {
                match self {
                    $($(#[cfg($cfg)])? Self::$variant(_) => EngineId::$variant,)*
                }
            }
        }

        impl Shared {
            /// As [`Workers::shared`].
            pub fn of(map: &Map) -> Self {
                match map {
                    $($(#[cfg($cfg)])?
                    Map::$variant(map) => Self::$variant(Arc::new(<$engine>::shared(map))),)*
                }
            }
        }

        $($(#[cfg($cfg)])? impl From<<$engine as Engine>::Options> for Options {
            fn from(options: <$engine as Engine>::Options) -> Self {
                Self::$variant(options)
            }
        })*

        impl<N: Net> Client<N> {
            /// As [`Engine::client`]; nessie's for each table of its layout, without a session.
            ///
            /// # Errors
            /// The errors of `connect`.
            pub fn open<C: Connect<N>>(
                map: &Map,
                access: Access,
                connect: C,
            ) -> Result<Self, C::Error> {
                if access.session.is_observer() && map.engine().needs().session_to_read {
                    return Ok(Self::NeedsSession(NeedsSession::new(connect.waiting(None)?)));
                }
                let readers = map.nessie().filter(|_| access.session.is_observer());
                let readers = readers.map(|map| Map::Nessie(map.clone()));
                Ok(match readers.as_ref().unwrap_or(map) {
                    $($(#[cfg($cfg)])? Map::$variant(map) => {
                        Self::$variant(<$engine>::client(map, access, connect)?)
                    })*
                })
            }
        }

        /// `by_engine!(value, Options(held), E => expression)`: the expression for the engine of
        /// `value`, an `Options`. In the expression `E` is the engine, and `held` what the variant
        /// holds. Variants that are no engine's are matched at the end.
        macro_rules! by_engine {
            ($d value:expr, $d kind:ident $d(($d held:ident))?, $d e:ident => $d then:expr
                $d(, $d other:pat => $d otherwise:expr)?) => {
                match $d value {
                    $($(#[cfg($cfg)])? $d kind::$variant $d(($d held))? => {
                        #[allow(dead_code, reason = "not every expression names the engine")]
                        type $d e = $engine;
                        $d then
                    })*
                    $d($d other => $d otherwise,)?
                }
            };
        }
    };
}

engines! { $
    /// [`nessie`](crate::nessie): the client alone.
    Nessie: crate::nessie::Nessie,
    /// [`nessie_server`](crate::nessie_server): the workers of the node that owns the key.
    NessieServer: crate::nessie_server::NessieServer,
    /// [`nessie_hybrid`](crate::nessie_hybrid): the client does GETs, workers do everything else.
    NessieHybrid: crate::nessie_hybrid::NessieHybrid,
    /// [`herd`](crate::herd): workers, which keep the values in their own memory.
    Herd: crate::herd::Herd,
    /// [`pilaf`](crate::pilaf): the client does GETs, one worker per node does everything else.
    Pilaf: crate::pilaf::Pilaf,
    /// [`kv_direct`](crate::kv_direct): workers, which can also compute on values.
    KvDirect: crate::kv_direct::KvDirect,
    /// [`example`](crate::example): workers, each with a `HashMap`.
    #[cfg(feature = "example")]
    Example: crate::example::Example,
}

/// `by_engine!` for a client: in the expression `client` is the engine's own.
macro_rules! by_client {
    ($value:expr, $client:ident => $then:expr) => {
        by_engine!($value, Client($client), E => $then, Client::NeedsSession($client) => $then)
    };
}

impl EngineId {
    /// The names that declare a table of the engine; the first is the engine's own.
    pub fn names(self) -> &'static [&'static str] {
        by_engine!(self, EngineId, E => E::NAMES)
    }

    /// As [`Engine::NEEDS`].
    pub fn needs(self) -> Needs {
        by_engine!(self, EngineId, E => E::NEEDS)
    }

    /// As [`Engine::facts`].
    pub fn facts(self, params: &TableParams) -> Vec<(&'static str, String)> {
        by_engine!(self, EngineId, E => E::facts(params))
    }

    /// The engine of a table in the directory, if the entry names a known engine.
    pub fn of(entry: &TableEntry) -> Option<Self> {
        Self::ALL.iter().copied().find(|engine| *engine as u32 == entry.engine)
    }

    /// The engine's name.
    pub fn name(self) -> &'static str {
        self.names()[0]
    }
}

impl Options {
    /// The name by which such a table is declared.
    pub fn name(&self) -> &'static str {
        by_engine!(self, Options(options), E => E::name(options))
    }

    /// As [`Engine::log`].
    pub fn log(&self) -> Option<LogConfig> {
        by_engine!(self, Options(options), E => E::log(options))
    }

    /// As [`Engine::functions`].
    pub fn functions(&self) -> &[FunctionConfig] {
        by_engine!(self, Options(options), E => E::functions(options))
    }

    /// As [`Engine::plan`].
    ///
    /// # Errors
    /// As [`Engine::plan`]; [`LayoutError::Geometry`] if the room's longest value is longer than
    /// the engine's values can be.
    pub fn plan(&self, room: &Room) -> Result<Plan, LayoutError> {
        self.engine().needs().check(room, self.name())?;
        by_engine!(self, Options(options), E => E::plan(options, room))
    }
}

impl Serialize for Options {
    /// The fields of a declaration.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        by_engine!(self, Options(options), E => options.serialize(serializer))
    }
}

impl Map {
    /// As [`Engine::bytes`].
    pub fn bytes(&self) -> u64 {
        by_engine!(self, Map(map), E => E::bytes(map))
    }

    /// As [`Engine::requests`].
    pub fn requests(&self) -> Option<&Arc<RequestMap>> {
        by_engine!(self, Map(map), E => E::requests(map))
    }

    /// As [`Engine::mailed`].
    fn mailed(&self) -> Option<&MailedRequests> {
        by_engine!(self, Map(map), E => E::mailed(map))
    }

    /// As [`Engine::readable`].
    pub fn readable(&self, node: u16) -> Vec<Range<u64>> {
        by_engine!(self, Map(map), E => E::readable(map, node))
    }

    /// As [`Engine::sizes`].
    pub fn sizes(&self) -> Sizes {
        by_engine!(self, Map(map), E => E::sizes(map))
    }

    /// Whether a full table makes room for a new value by removing others.
    pub fn evicts(&self) -> bool {
        by_engine!(self, Map(map), E => E::evicts(map))
    }

    /// The map of the table that the directory lists as `entry` and that begins at `places`: see
    /// [`Engine::map`].
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if the entry's parts do not make a table of its engine with
    /// exactly this number of bytes.
    pub fn of(entry: &TableEntry, places: &[Place]) -> Result<Self, LayoutError> {
        let engine = EngineId::of(entry)
            .ok_or_else(|| LayoutError::Geometry("a table's engine is unknown".into()))?;
        let map = Self::new(engine, &entry.params, places)?;
        map.check(&entry.params)?;
        if map.bytes() != entry.bytes {
            let (has, takes) = (entry.bytes, map.bytes());
            let text = format!("a table has {has} bytes and takes {takes}");
            return Err(LayoutError::Geometry(text));
        }
        Ok(map)
    }

    /// Checks what holds of the parameters that every engine plans.
    fn check(&self, params: &TableParams) -> Result<(), LayoutError> {
        let wrong = |what: String| Err(LayoutError::Geometry(what));
        let has_shape = (params.shape_head, params.shape) != Default::default();
        if has_shape && self.nessie().is_none() {
            return wrong("a table has a shape, and its engine has none".into());
        }
        let max = params.value_bytes_max;
        let both = self.engine().needs().key_and_value_bytes_max;
        if both.is_some_and(|both| max >= both as u64) {
            return wrong(format!("values of {max} bytes, longer than messages"));
        }
        let Service { request_bytes, reply_bytes, .. } = params.service;
        if request_bytes != 0 && u64::from(request_bytes) < max {
            return wrong(format!("slots of {request_bytes} bytes, values of {max}"));
        }
        if self.mailed().is_some() && reply_bytes != 0 {
            return wrong("a table has slots for replies that are sent".into());
        }
        Ok(())
    }

    /// Bytes of the table's requests, replies and mailboxes on each node.
    pub fn request_bytes(&self) -> u64 {
        match self.mailed() {
            Some(mailed) => mailed.mailboxes().end(),
            None => self.requests().map_or(0, |requests| requests.area().bytes()),
        }
    }

    /// The mailboxes of a node's part, with their offsets from the table's first byte.
    pub fn mailboxes(&self) -> Vec<(u64, MailboxShape)> {
        self.mailed().map_or_else(Vec::new, |mailed| mailed.mailboxes().all())
    }

    /// The map, if the table has nessie's layout. Such tables are scrubbed, and clients of nessie
    /// read them without a session.
    pub fn nessie(&self) -> Option<&Arc<TableMap>> {
        match self {
            Self::Nessie(map) => Some(map),
            Self::NessieServer(served) | Self::NessieHybrid(served) => Some(&served.table),
            _ => None,
        }
    }
}

impl Shared {
    /// As [`Workers::housekeeper`].
    pub fn housekeeper(&self) -> Option<&dyn Housekeeper> {
        by_engine!(self, Shared(shared), E => E::housekeeper(shared))
    }

    /// As [`Workers::serve`].
    ///
    /// # Errors
    /// As [`Workers::serve`].
    pub async fn serve<H: WorkerHost>(&self, host: &H) -> Result<(), WorkerError> {
        by_engine!(self, Shared(shared), E => E::serve(shared, host).await)
    }
}

/// An operation of a client whose engine is known only at run time, boxed to keep futures small.
pub type Operating<'a, T> = Pin<Box<dyn Future<Output = Result<T, EngineError>> + 'a>>;

#[allow(refining_impl_trait, reason = "callers keep the boxed futures as what they are")]
impl<N: Net> Kv for Client<N> {
    type Fabric = N::Direct;

    fn fabric(&self) -> &N::Direct {
        by_engine!(self, Client(client), E => E::direct::<N>(client),
            Client::NeedsSession(client) => N::direct(client.fabric()))
    }

    fn counted(&self) -> VerbCount {
        by_client!(self, client => client.counted())
    }

    fn retries(&self) -> u64 {
        by_client!(self, client => client.retries())
    }

    fn execute<'a>(
        &'a self,
        key: &'a [u8],
        operation: Operation<'a>,
        buf: Buf,
    ) -> Operating<'a, Done> {
        by_client!(self, client => Box::pin(client.execute(key, operation, buf)))
    }

    fn shares(&self, is_read: bool) -> bool {
        by_client!(self, client => client.shares(is_read))
    }

    fn execute_many<'a>(
        &'a self,
        batch: Batch<'a>,
        done: &'a mut dyn FnMut(usize, Outcome<'_>),
    ) -> Operating<'a, ()> {
        by_client!(self, client => Box::pin(client.execute_many(batch, done)))
    }

    fn come_to_rest(&self) -> Operating<'_, ()> {
        by_client!(self, client => Box::pin(client.come_to_rest()))
    }

    fn leave(&self) {
        by_client!(self, client => client.leave());
    }

    fn detach(&self) -> Operating<'_, ()> {
        by_client!(self, client => Box::pin(client.detach()))
    }
}

impl<N: Net> Client<N> {
    /// The client, if it is nessie's own, which does all the work of an operation itself.
    pub fn nessie(&self) -> Option<&AnyClient<N::Direct>> {
        match self {
            Self::Nessie(client) => Some(client),
            _ => None,
        }
    }

    /// The client, if it is of the engine whose operations are worth awaiting in place: the box of
    /// [`Operating`] would cost them a tenth of their time.
    #[inline]
    pub fn in_place(&self) -> Option<&nessie::Client<N::Direct>> {
        match self {
            Self::Nessie(AnyClient::Loch(client)) => Some(client),
            _ => None,
        }
    }
}

/// The error for a name that no engine has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no engine {name:?}: choose one of {}", names().collect::<Vec<_>>().join(", "))]
pub struct UnknownEngine {
    /// The name.
    pub name: String,
}

impl FromStr for Options {
    type Err = UnknownEngine;

    /// The engine of that name, with default options.
    ///
    /// ```
    /// use loch_engines::registry::Options;
    /// assert_eq!("herd".parse::<Options>().map(|options| options.name()), Ok("herd"));
    /// assert!("pilau".parse::<Options>().unwrap_err().to_string().contains("pilaf"));
    /// ```
    fn from_str(name: &str) -> Result<Self, UnknownEngine> {
        let nothing = std::iter::empty::<(&str, &str)>();
        let nothing = MapDeserializer::<_, serde::de::value::Error>::new(nothing);
        let read = Self::read(name, nothing).and_then(Result::ok);
        read.ok_or_else(|| UnknownEngine { name: name.into() })
    }
}

/// The names of all engines.
pub fn names() -> impl Iterator<Item = &'static str> {
    EngineId::ALL.iter().flat_map(|engine| engine.names()).copied()
}

#[cfg(test)]
mod tests {
    use loch_fabric::{RegionId, RemoteAddr};
    use zerocopy::IntoBytes;

    use super::*;
    use crate::nessie::geometry::Geometry;
    use crate::region::{Header, LAYOUT_VERSION, MAGIC};

    #[test]
    fn every_name_and_number_is_one_engines() {
        let all: Vec<_> = names().collect();
        for name in &all {
            assert_eq!(all.iter().filter(|other| *other == name).count(), 1, "{name}");
            assert_eq!(name.parse::<Options>().map(|options| options.name()), Ok(*name));
        }
        for engine in EngineId::ALL {
            let same = EngineId::ALL.iter().filter(|other| **other as u32 == *engine as u32);
            assert_eq!(same.count(), 1, "{engine:?}");
        }
    }

    fn header() -> Header {
        Header {
            magic: MAGIC,
            version: LAYOUT_VERSION,
            node: 1,
            nodes: 3,
            region_bytes: 1 << 30,
            sessions: 128,
            tables: 1,
            identity: 9,
            checksum: 0,
        }
        .sealed()
    }

    /// The map of the table that a directory with this entry lists.
    fn parsed(entry: &TableEntry) -> Result<Map, LayoutError> {
        let entry = TableEntry::parse(entry.as_bytes(), 0, &header())?;
        Map::of(&entry, &[(RemoteAddr::new(RegionId(0), entry.offset), 128); 3])
    }

    fn room(workers: u16) -> Room {
        let (share, nodes, slots) = (16 << 20, 3, 9);
        Room { share, nodes, value_max: None, workers, window: None, slots, is_remote: false }
    }

    /// Clients and workers subtract lengths of messages from lengths of slots, and share arenas.
    #[test]
    fn what_no_plan_makes_is_refused_before_its_length_is_looked_at() {
        let changed = |name: &str, change: fn(&mut TableParams)| {
            let options: Options = name.parse().expect("it is one");
            let mut params = options.plan(&room(1)).expect(name).params;
            let places = [(RemoteAddr::new(RegionId(0), 1 << 16), 128); 3];
            assert!(Map::new(options.engine(), &params, &places).is_ok(), "{name}");
            change(&mut params);
            assert!(Map::new(options.engine(), &params, &places).is_err(), "{name}: {params:?}");
        };
        changed("pilaf", |params| params.words[1] = u64::MAX);
        changed("pilaf", |params| params.words[1] = 0);
        changed("pilaf", |params| params.words[1] = 48);
        changed("pilaf", |params| params.words[0] += 64);
        changed("pilaf", |params| params.service.workers = 2);
        changed("pilaf", |params| params.service.request_bytes = 0);
        changed("kv-direct", |params| params.service.request_bytes = 0);
        changed("kv-direct", |params| params.service.request_bytes = 128);
        changed("kv-direct", |params| params.service.reply_bytes = 0);
        changed("nessie-server", |params| params.service.request_bytes = 0);
        changed("nessie-server", |params| params.service.reply_bytes = 0);
        // The entry of a key would not be on the node of the worker that serves the key.
        changed("nessie-server", |params| {
            let shape = Geometry::of(params).validate().expect("it was planned");
            let loose = Geometry { options: shape.options.to_bits(), ..shape.geometry };
            *params = loose.params(params.service);
        });
    }

    #[test]
    fn every_engines_plan_is_a_table_of_its_bytes_and_of_no_others() {
        for name in names() {
            let options: Options = name.parse().expect("it is one");
            let plan = options.plan(&room(1)).expect(name);
            let (begin, engine) = (header().tables_offset(), options.engine());
            let entry = |engine: EngineId, bytes: u64, params: TableParams| {
                let place = begin..begin + bytes;
                TableEntry::new("t", engine as u32, place, params).expect("a name")
            };
            let good = entry(engine, plan.bytes, plan.params);
            let map = parsed(&good).expect(name);
            assert_eq!((map.engine(), map.bytes()), (engine, plan.bytes));
            assert_eq!(map.requests().is_some(), engine.needs().workers, "{name}");
            assert_eq!(options.plan(&room(1)), Ok(plan), "the same again");
            assert!(parsed(&entry(engine, plan.bytes - 64, plan.params)).is_err(), "{name}");
            let Service { sessions_per_node, .. } = plan.params.service;
            if engine.needs().workers {
                assert_eq!(sessions_per_node, 9);
                let service = Service { sessions_per_node: 129, ..plan.params.service };
                let params = TableParams { service, ..plan.params };
                assert!(parsed(&entry(engine, plan.bytes, params)).is_err(), "{name}");
                for (slots, fit) in [(128, true), (129, false)] {
                    let wide = Room { slots, share: 64 << 20, ..room(1) };
                    let plan = options.plan(&wide).expect(name);
                    let parsed = parsed(&entry(engine, plan.bytes, plan.params));
                    assert_eq!(parsed.is_ok(), fit, "{name}: the node has 128 session slots");
                }
            }
            let service = match engine.needs().workers {
                true => Service::default(),
                false => Service { workers: 1, ..Service::default() },
            };
            let params = TableParams { service, ..plan.params };
            assert!(parsed(&entry(engine, plan.bytes, params)).is_err(), "{name}");
            let params = TableParams { words: [u64::MAX; 6], ..plan.params };
            assert!(parsed(&entry(engine, plan.bytes, params)).is_err(), "{name}");
            let params = TableParams { nodes: 2, ..plan.params };
            assert!(parsed(&entry(engine, plan.bytes, params)).is_err(), "{name}");
            let params = TableParams { value_bytes_max: u64::MAX, ..plan.params };
            assert!(parsed(&entry(engine, plan.bytes, params)).is_err(), "{name}");
            if map.nessie().is_none() {
                let params = TableParams { shape: [0, 0, 1, 0, 0], ..plan.params };
                assert!(parsed(&entry(engine, plan.bytes, params)).is_err(), "{name}");
            }
        }
    }
}
