//! The plan of a table that workers serve: how much of its memory is for requests.

use loch_engines::herd::{self, storage};
use loch_engines::kv_direct;
use loch_engines::kv_direct::bucket::INLINE_BYTES_MAX;
use loch_engines::kv_direct::item::Format;
use loch_engines::kv_direct::tuning::Corpus;
use loch_engines::limits::{HERD_ITEM_BYTES_MAX, REPLIES_MAX};
use loch_engines::nessie::geometry::{Geometry, Options};
use loch_engines::pilaf::layout::ARENA_OFFSET;
use loch_engines::region::{EngineId, TABLE_ALIGN_BYTES, TableEntry};
use loch_engines::requests::message::{REPLY_TRAILER_BYTES, REQUEST_OVERHEAD_BYTES};
use loch_engines::requests::{Area, Service};
use zerocopy::FromZeros;

use crate::engine::Engine;
use crate::limits::{
    HERD_BYTES_PER_CACHE_SLOT, HERD_BYTES_PER_STORE_SLOT, INDEX_RATIO_DEFAULT,
    INLINE_BYTES_DEFAULT, LONGEST_VALUES_MIN, PACKET_BYTES_DEFAULT, PILAF_BYTES_PER_INDEX_SLOT,
    REQUEST_KEY_BYTES, REQUEST_SHARE, SERVED_SESSIONS_DEFAULT, SERVED_VALUE_BYTES_MIN,
    VALUE_BYTES_DEFAULT, WINDOW_DEFAULT,
};
use crate::served::direct::Partition;
use crate::served::layout::{Extra, Layout};
use crate::size::InWords;
use crate::{ByteSize, Error, RequestWay, TableConfig, TableMode, TunedFor};

/// What a served table has room in.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// Its first byte in the region.
    pub offset: u64,
    /// Its bytes of the node's memory.
    pub share: u64,
    pub nodes: u16,
    /// Session slots of clients, and the scrubber's.
    pub slots: u32,
}

/// A planned table, and the bytes that it has in the memory of the node's process besides.
pub(super) struct Planned {
    pub entry: TableEntry,
    pub private_bytes: u64,
}

/// Lengths that a table's requests have, before the longest value is known.
struct Terms<'a> {
    table: &'a TableConfig,
    room: Room,
    workers: u16,
    window: u16,
    /// Session slots whose clients can have the table open.
    slots: u32,
}

/// Plans a table of an engine whose server takes part.
///
/// # Errors
/// [`Error::Config`].
pub(super) fn plan(table: &TableConfig, engine: Engine, room: Room) -> Result<Planned, Error> {
    let terms = Terms::new(table, engine, room)?;
    match engine {
        Engine::Herd => terms.herd(),
        Engine::Pilaf => terms.pilaf(),
        Engine::KvDirect => terms.kv_direct(),
        Engine::NessieServer => terms.nessie(engine, true, options(table, true)),
        Engine::NessieHybrid { plus } => terms.nessie(engine, false, options(table, plus)),
        Engine::Nessie => unreachable!("nobody serves it"),
    }
}

/// What clients and workers do that go by a table of nessie.
fn options(table: &TableConfig, plus: bool) -> Options {
    Options {
        filter_bits: plus && table.filter_bits,
        cache: if plus { table.cache } else { Some(false) },
        multi_read: plus && table.multi_read,
        batched_reads: table.batched_reads,
        checksums: table.checksums,
    }
}

impl<'a> Terms<'a> {
    fn new(table: &'a TableConfig, engine: Engine, room: Room) -> Result<Self, Error> {
        let wrong = |problem: String| Err(Error::config(in_table(table), problem));
        let clients = room.slots - 1;
        let sessions = table.sessions.unwrap_or(clients.min(SERVED_SESSIONS_DEFAULT));
        if sessions == 0 || sessions > clients {
            return wrong(format!("sessions is {sessions}, it may be 1 to the node's {clients}"));
        }
        let workers = table.workers.unwrap_or(1);
        if engine == Engine::Pilaf && workers != 1 {
            return wrong(format!("workers is {workers}: pilaf has one worker on each node"));
        }
        let window = table.window.unwrap_or(WINDOW_DEFAULT);
        Ok(Self { table, room, workers, window, slots: sessions + 1 })
    }

    /// The requests of a client that are under way at all: as many as all workers let it have, but
    /// no more than `most`.
    fn replies(&self, most: u16) -> u16 {
        let all = u32::from(self.window) * u32::from(self.workers) * u32::from(self.room.nodes);
        all.min(u32::from(most).max(u32::from(self.window))).min(u32::from(REPLIES_MAX)) as u16
    }

    fn wrong(&self, problem: impl std::fmt::Display) -> Error {
        Error::config(in_table(self.table), problem.to_string())
    }

    /// The longest value, if that was not chosen: so that requests of `requests` slots and replies of
    /// `replies` take their share of the memory and no more.
    fn value_max(&self, requests: u64, replies: u64) -> Result<u64, Error> {
        if let Some(max) = self.table.value_max {
            return Ok(max.bytes());
        }
        let each = self.room.share / REQUEST_SHARE / (requests + replies).max(1);
        // Slots are whole lines.
        let overhead = REQUEST_KEY_BYTES
            + (REQUEST_OVERHEAD_BYTES as u64).max(REPLY_TRAILER_BYTES as u64)
            + 7
            + 63;
        let max = each.saturating_sub(overhead).min(VALUE_BYTES_DEFAULT);
        if max >= SERVED_VALUE_BYTES_MIN {
            return Ok(max);
        }
        Err(self.wrong(format!(
            "{requests} requests and {replies} replies of {each} bytes each would be an eighth of its \
             memory of {}: give it more memory, fewer sessions ({}) or workers ({}), a smaller \
             window ({}), or say how long its values are (value_max)",
            ByteSize::new(self.room.share),
            self.slots - 1,
            self.workers,
            self.window
        )))
    }

    /// Request slots of all clients at the workers of a node.
    fn request_slots(&self) -> u64 {
        u64::from(self.workers)
            * u64::from(self.room.nodes)
            * u64::from(self.slots)
            * u64::from(self.window)
    }

    fn nessie(self, engine: Engine, gets: bool, options: Options) -> Result<Planned, Error> {
        let replies = self.replies(4 * WINDOW_DEFAULT);
        let reply_slots = if gets { u64::from(self.slots) * u64::from(replies) } else { 0 };
        let mut value_max = self.value_max(self.request_slots(), reply_slots)?;
        let service = |value_max| {
            let request = Service::request_bytes_for(REQUEST_KEY_BYTES, value_max);
            let reply = Service::reply_bytes_for(if gets { value_max } else { 0 });
            let service = Service {
                workers: self.workers,
                window: self.window,
                replies,
                sessions_per_node: self.slots,
                request_bytes: request.map_err(|e| self.wrong(e))?,
                reply_bytes: reply.map_err(|e| self.wrong(e))?,
                ..Service::default()
            };
            Area::new(service, self.room.nodes).map_err(|e| self.wrong(e))
        };
        let geometry = |area: &Area| {
            let left = self.left(area.bytes())?;
            super::geometry(self.table, left, self.room.nodes, options)
        };
        let mut area = service(value_max)?;
        let mut planned = geometry(&area)?;
        if self.table.value_max.is_none() {
            value_max = value_max.min(planned.data_bytes() / LONGEST_VALUES_MIN);
            area = service(value_max)?;
            planned = geometry(&area)?;
        }
        let planned = Geometry { value_bytes_max: value_max, ..planned }.coupled();
        let shape = planned.validate().map_err(|e| self.wrong(e))?;
        let bytes = shape.bytes() + area.bytes();
        self.entry(engine.id(), bytes, planned, *area.service(), [0; 6]).map(Planned::shared)
    }

    fn herd(self) -> Result<Planned, Error> {
        let max = HERD_ITEM_BYTES_MAX as u64 - 1;
        let value_max = self.table.value_max.map_or(max, ByteSize::bytes);
        if value_max > max {
            return Err(self.wrong(format!(
                "value_max is {value_max}: a key and its value have up to {HERD_ITEM_BYTES_MAX} \
                 bytes in a herd table"
            )));
        }
        let by_send = self.table.requests == Some(RequestWay::Send);
        let service = herd::service(self.workers, self.window, self.slots, by_send);
        let service = Service { replies: self.replies(REPLIES_MAX), ..service };
        let layout = Layout::new(EngineId::Herd, service, self.room.nodes);
        let layout = layout.map_err(|e| self.wrong(e))?;
        let (mode, slot_bytes) = match self.table.mode.unwrap_or(TableMode::Cache) {
            TableMode::Cache => (storage::Mode::Cache, HERD_BYTES_PER_CACHE_SLOT),
            TableMode::Store => (storage::Mode::Store, HERD_BYTES_PER_STORE_SLOT),
        };
        let shared = layout.end().next_multiple_of(TABLE_ALIGN_BYTES);
        let partition_bytes = self.left(shared)? / u64::from(self.workers);
        let index_slots = match self.table.index_slots {
            Some(slots) => slots.div_ceil(u64::from(self.workers)),
            None => partition_bytes / slot_bytes,
        };
        storage::Plan::new(mode, partition_bytes, index_slots).map_err(|e| self.wrong(e))?;
        let extra = Extra::Herd { mode, partition_bytes, index_slots };
        let geometry = self.shapeless(value_max);
        let entry = self.entry(EngineId::Herd, layout.end(), geometry, service, extra.words())?;
        Ok(Planned { entry, private_bytes: partition_bytes * u64::from(self.workers) })
    }

    fn pilaf(self) -> Result<Planned, Error> {
        let mut value_max = self.value_max(self.request_slots(), 0)?;
        if self.table.value_max.is_none() {
            value_max = value_max.min(self.room.share / 2 / LONGEST_VALUES_MIN);
        }
        let request = Service::request_bytes_for(REQUEST_KEY_BYTES, value_max);
        let service = Service {
            workers: self.workers,
            window: self.window,
            replies: self.replies(REPLIES_MAX),
            sessions_per_node: self.slots,
            request_bytes: request.map_err(|e| self.wrong(e))?,
            ..Service::default()
        };
        let layout = Layout::new(EngineId::Pilaf, service, self.room.nodes);
        let layout = layout.map_err(|e| self.wrong(e))?;
        let arena_bytes = self.left(layout.root_at() + ARENA_OFFSET)? / ARENA_OFFSET * ARENA_OFFSET;
        // Doubled until it has at least as many; blocks are powers of two, and so is the index.
        let wanted = self.table.index_slots.unwrap_or(arena_bytes / PILAF_BYTES_PER_INDEX_SLOT);
        let index_slots = wanted.clamp(8, 1 << 32).next_power_of_two();
        if arena_bytes / 2 < index_slots.saturating_mul(64) || arena_bytes < 4 * value_max {
            return Err(self.wrong(format!(
                "of its memory {} are left for {index_slots} index slots and values of {}: give it \
                 more memory, fewer index_slots or a smaller value_max",
                InWords(arena_bytes),
                InWords(value_max)
            )));
        }
        let extra = Extra::Pilaf { arena_bytes, index_slots };
        let bytes = layout.root_at() + ARENA_OFFSET + arena_bytes;
        let geometry = self.shapeless(value_max);
        self.entry(EngineId::Pilaf, bytes, geometry, service, extra.words()).map(Planned::shared)
    }

    fn kv_direct(self) -> Result<Planned, Error> {
        let replies = self.replies(4 * WINDOW_DEFAULT);
        let reply_slots = u64::from(self.slots) * u64::from(replies);
        let value_max = self.value_max(self.request_slots(), reply_slots)?;
        let item_max = REQUEST_KEY_BYTES + value_max;
        let packet_bytes = self.packet_bytes(reply_slots, item_max)?;
        let service =
            kv_direct::service(self.workers, self.window, self.slots, packet_bytes, item_max)
                .map_err(|e| self.wrong(e))?;
        let service = Service { replies, ..service };
        let area = Area::new(service, self.room.nodes).map_err(|e| self.wrong(e))?;
        let shared = area.bytes().next_multiple_of(TABLE_ALIGN_BYTES);
        let bytes = self.left(shared)? / u64::from(self.workers);
        let partition = self.partition(bytes)?;
        partition.plan(value_max).map_err(|e| self.wrong(e))?;
        let geometry = self.shapeless(value_max);
        let (engine, words) = (EngineId::KvDirect, partition.words());
        let entry = self.entry(engine, area.bytes(), geometry, service, words)?;
        Ok(Planned { entry, private_bytes: bytes * u64::from(self.workers) })
    }

    /// The bytes of a packet: as they were chosen, or a share of the memory.
    fn packet_bytes(&self, reply_slots: u64, item_max: u64) -> Result<u32, Error> {
        let bytes = self.table.packet_bytes.map(ByteSize::bytes).unwrap_or_else(|| {
            let slots = self.request_slots() + reply_slots;
            let share = self.room.share / REQUEST_SHARE / slots.max(1);
            PACKET_BYTES_DEFAULT.min(share).max(item_max)
        });
        u32::try_from(bytes).ok().filter(|bytes| *bytes > 0).ok_or_else(|| {
            self.wrong(format!("packet_bytes is {bytes}, it may be 1 to {}", u32::MAX))
        })
    }

    /// What a worker's memory of so many bytes is like.
    fn partition(&self, bytes: u64) -> Result<Partition, Error> {
        let &TableConfig { index_ratio, inline_bytes, key_bytes, tuned_for, .. } = self.table;
        let versions = self.table.versions.unwrap_or(true);
        if key_bytes == Some(0) {
            return Err(self.wrong("key_bytes is 0: a key has at least one byte"));
        }
        let (ratio, inline) = match tuned_for {
            None => (INDEX_RATIO_DEFAULT, INLINE_BYTES_DEFAULT),
            Some(_) if index_ratio.is_some() || inline_bytes.is_some() => {
                return Err(self.wrong(
                    "tuned_for chooses index_ratio and inline_bytes: say either it, or those",
                ));
            }
            Some(wanted) => self.tuned(Format { key_bytes, versions }, wanted)?,
        };
        let ratio = index_ratio.unwrap_or(ratio);
        if !(ratio > 0.0 && ratio <= 1.0) {
            return Err(self.wrong(format!("index_ratio is {ratio}, it is above 0 and up to 1")));
        }
        let inline = inline_bytes.unwrap_or(inline);
        if usize::from(inline) > INLINE_BYTES_MAX {
            let may = format!("inline_bytes is {inline}, it may be 0 to {INLINE_BYTES_MAX}");
            return Err(self.wrong(may));
        }
        Ok(Partition {
            bytes,
            index_millionths: Partition::millionths(ratio),
            inline_bytes: inline,
            key_bytes,
            versions,
            out_of_order: self.table.out_of_order.unwrap_or(true),
        })
    }

    /// The share of a worker's memory that its index has best, and what is best in it.
    fn tuned(&self, format: Format, wanted: TunedFor) -> Result<(f64, u16), Error> {
        let TunedFor { key_bytes, value_bytes, utilisation } = wanted;
        let bytes = |bytes: u64| bytes.try_into().unwrap_or(usize::MAX);
        let (key, value) = (bytes(key_bytes), bytes(value_bytes));
        let tuned = match format.key_bytes {
            Some(fixed) if u64::from(fixed) != key_bytes => {
                return Err(self.wrong(format!(
                    "key_bytes is {fixed}, and it is tuned_for keys of {key_bytes} bytes"
                )));
            }
            _ => Corpus::of_one_size(format, key, value, utilisation).tune(),
        };
        let tuned = tuned.map_err(|e| self.wrong(format!("tuned_for: {e}")))?;
        Ok((tuned.index_ratio, tuned.inline_bytes_max))
    }

    /// What is left of the table's memory for values.
    fn left(&self, requests: u64) -> Result<u64, Error> {
        // More than half of it for requests is no table.
        let left = self.room.share.checked_sub(requests).filter(|left| *left >= requests);
        left.ok_or_else(|| {
            self.wrong(format!(
                "its requests take {} of its memory of {}: give it more memory, fewer sessions ({}) \
                 or workers ({}), a smaller window ({}) or shorter values (value_max)",
                InWords(requests),
                ByteSize::new(self.room.share),
                self.slots - 1,
                self.workers,
                self.window
            ))
        })
    }

    /// The geometry of a table that is not laid out as nessie's.
    fn shapeless(&self, value_bytes_max: u64) -> Geometry {
        let seed = super::SEED;
        Geometry { nodes: self.room.nodes, value_bytes_max, seed, ..Geometry::new_zeroed() }
    }

    fn entry(
        &self,
        engine: EngineId,
        bytes: u64,
        geometry: Geometry,
        service: Service,
        words: [u64; 6],
    ) -> Result<TableEntry, Error> {
        let place = self.room.offset..self.room.offset + bytes;
        let entry = TableEntry::served(&self.table.name, engine, place, geometry, service, words);
        entry.map_err(|e| self.wrong(e))
    }
}

impl Planned {
    fn shared(entry: TableEntry) -> Self {
        Self { entry, private_bytes: 0 }
    }
}

fn in_table(table: &TableConfig) -> String {
    format!("table {:?}", table.name)
}

#[cfg(test)]
mod tests {
    use crate::plan::{Plan, Sizes};
    use crate::served::direct::Partition;
    use crate::{ByteSize, Error, TableConfig, TableMode, TunedFor};

    const MIB: u64 = 1 << 20;
    const SERVED: [&str; 6] =
        ["nessie-server", "nessie-hybrid", "nessie-hybrid+", "herd", "pilaf", "kv-direct"];

    fn plan(memory: u64, nodes: usize, table: &TableConfig) -> Result<Plan, Error> {
        let tables = std::slice::from_ref(table);
        let memory = ByteSize::new(memory);
        Plan::new(Sizes { node: 0, nodes, memory, sessions: 1024, tables })
    }

    fn table(engine: &str) -> TableConfig {
        TableConfig { engine: engine.into(), ..TableConfig::default() }
    }

    #[test]
    fn requests_take_no_more_than_their_share_if_nothing_else_is_said() {
        for engine in SERVED {
            for (memory, nodes) in [(256 * MIB, 1), (256 * MIB, 4), (4096 * MIB, 2)] {
                let planned = plan(memory, nodes, &table(engine)).unwrap();
                let entry = &planned.tables[0];
                let requests = entry.area().unwrap().bytes();
                // Replies without a value are beside that.
                assert!(requests <= memory / 8 + MIB, "{engine}: {requests} of {memory}");
                assert_eq!(entry.service.sessions_per_node, 65);
            }
        }
    }

    #[test]
    fn values_of_herd_and_kv_direct_are_not_in_the_region() {
        for engine in ["herd", "kv-direct"] {
            let planned = plan(256 * MIB, 1, &table(engine)).unwrap();
            assert!(planned.header.region_bytes <= 33 * MIB, "{}", planned.header.region_bytes);
            let all = planned.header.region_bytes + planned.private_bytes.iter().sum::<u64>();
            assert!((255 * MIB..=256 * MIB).contains(&all), "{engine}: {all}");
        }
        let pilaf = plan(256 * MIB, 1, &table("pilaf")).unwrap();
        assert_eq!((pilaf.header.region_bytes, pilaf.private_bytes), (256 * MIB, vec![0]));
    }

    #[test]
    fn workers_that_are_clients_have_session_slots_of_their_own() {
        let own = [("nessie-server", 4), ("nessie-hybrid", 4), ("kv-direct", 4), ("herd", 1)];
        for (engine, own) in own {
            let table = TableConfig { workers: Some(3), ..table(engine) };
            let planned = plan(256 * MIB, 1, &table).unwrap();
            assert_eq!(planned.header.sessions, 1024 + own, "{engine}");
            assert_eq!(crate::plan::client_sessions(&planned.header, &planned.tables), 1024);
        }
    }

    #[test]
    fn what_cannot_be_served_is_named() {
        let of = |engine: &str, change: fn(&mut TableConfig)| {
            let mut table = table(engine);
            change(&mut table);
            plan(16 * MIB, 1, &table).unwrap_err().to_string()
        };
        for (error, word) in [
            (of("herd", |t| t.workers = Some(0)), "workers is 0"),
            (of("herd", |t| t.window = Some(257)), "window is 257"),
            (of("herd", |t| t.sessions = Some(1025)), "1 to the node's 1024"),
            (of("herd", |t| t.value_max = Some(ByteSize::new(4096))), "968"),
            (of("herd", |t| t.index_slots = Some(1 << 30)), "index"),
            (of("herd", |t| (t.sessions, t.window) = (Some(1024), Some(64))), "fewer sessions"),
            (of("pilaf", |t| t.workers = Some(2)), "one worker"),
            (of("pilaf", |t| t.value_max = Some(ByteSize::new(8 << 20))), "value_max"),
            (of("nessie-server", |t| t.sessions = Some(1024)), "value_max"),
            (of("kv-direct", |t| t.index_ratio = Some(1.1)), "index_ratio is 1.1"),
            (of("kv-direct", |t| t.index_ratio = Some(f64::NAN)), "index_ratio is NaN"),
            (of("kv-direct", |t| t.inline_bytes = Some(1000)), "inline_bytes is 1000"),
            (of("kv-direct", |t| t.key_bytes = Some(0)), "key_bytes is 0"),
            (of("kv-direct", |t| t.packet_bytes = Some(ByteSize::new(0))), "packet_bytes is 0"),
            (
                of("nessie-server", |t| t.value_max = Some(ByteSize::new(1 << 20))),
                "shorter values (value_max)",
            ),
        ] {
            assert!(error.contains(word) && error.contains("default"), "{word}: {error}");
        }
    }

    #[test]
    fn a_table_is_tuned_for_what_it_will_hold() {
        let tuned = |wanted, change: fn(&mut TableConfig)| {
            let mut table = TableConfig { tuned_for: Some(wanted), ..table("kv-direct") };
            change(&mut table);
            plan(16 * MIB, 1, &table).map(|plan| Partition::of(&plan.tables[0]).unwrap())
        };
        let short = TunedFor { key_bytes: 8, value_bytes: 8, utilisation: 0.4 };
        let long = TunedFor { value_bytes: 2000, ..short };
        let (of_short, of_long) = (tuned(short, |_| ()).unwrap(), tuned(long, |_| ()).unwrap());
        assert!(of_short.inline_bytes >= 16, "{of_short:?}");
        assert!(of_short.index_millionths > of_long.index_millionths, "{of_long:?}");
        for (wanted, change, word) in [
            (TunedFor { utilisation: 1.5, ..short }, (|_| ()) as fn(&mut TableConfig), "1.5"),
            (TunedFor { utilisation: 0.99, ..short }, |_| (), "tuned_for"),
            (short, |t| t.inline_bytes = Some(8), "say either"),
            (short, |t| t.key_bytes = Some(9), "key_bytes is 9"),
        ] {
            let error = tuned(wanted, change).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("default"), "{word}: {error}");
        }
    }

    #[test]
    fn a_changed_service_is_told_apart() {
        let made = plan(64 * MIB, 1, &table("herd")).unwrap();
        let field = |changed: TableConfig| {
            let changed = plan(64 * MIB, 1, &changed).unwrap();
            changed.difference(&made.header, &made.tables).unwrap().field
        };
        assert_eq!(field(table("pilaf")), "table \"default\": engine");
        let workers = TableConfig { workers: Some(2), ..table("herd") };
        assert_eq!(field(workers), "table \"default\": workers");
        let sessions = TableConfig { sessions: Some(9), ..table("herd") };
        assert!(field(sessions).contains("sessions"));
        let store = TableConfig { mode: Some(TableMode::Store), ..table("herd") };
        assert!(field(store).contains("mode"));
        let field = |change: fn(&mut TableConfig)| {
            let made = plan(64 * MIB, 1, &table("kv-direct")).unwrap();
            let mut changed = table("kv-direct");
            change(&mut changed);
            let changed = plan(64 * MIB, 1, &changed).unwrap();
            changed.difference(&made.header, &made.tables).unwrap().field
        };
        assert_eq!(field(|t| t.index_ratio = Some(0.3)), "table \"default\": index_ratio");
        assert_eq!(field(|t| t.versions = Some(false)), "table \"default\": versions");
        assert_eq!(field(|t| t.key_bytes = Some(8)), "table \"default\": key_bytes");
    }
}
