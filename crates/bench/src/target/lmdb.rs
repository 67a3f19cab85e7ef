//! LMDB: embedded, so every client's process opens the same environment.
//!
//! Tuned as for a cache: no syncing, a writable map on `/dev/shm`. GETs of one batch of `lanes`
//! share a snapshot and copy the value out, as GETs of every other store do, unless the run reads
//! in place, as LMDB is made for. PUTs wait until `lanes` of them are outstanding and commit in one
//! transaction, which is the most that a window of that size allows; the wait is part of their
//! latency.

use std::ops::Range;
use std::path::{Path, PathBuf};

use lmdb::{
    Database, Environment, EnvironmentFlags, Error, RoTransaction, Transaction, WriteFlags,
};
use tempfile::TempDir;

use super::{DIR_PREFIX, Endpoint, Result, Service, Target, check_key_size};
use crate::error::TargetError;
use crate::measure::{Kind, Op, Outcome, Run};
use crate::options::ReadMode;
use crate::spec::Spec;
use crate::workload::{Workload, touched};

const NAME: &str = "lmdb";
/// A limit of its build.
const KEY_SIZE_MAX: usize = 511;
/// The directory of its map, in memory.
const MEMORY_DIR: &str = "/dev/shm";
/// Records a transaction while loading.
const LOAD_BATCH: u64 = 4096;
/// Bytes of a page. The map also has room for pages that copy-on-write keeps twice; it is sparse,
/// so room costs nothing until it is used.
const PAGE_BYTES: u64 = 4096;
const NODE_OVERHEAD_BYTES: u64 = 32;
const ROOM: u64 = 4;
const MAP_BYTES_MIN: u64 = 1 << 30;
/// One operation in this many is timed: a GET costs little more than the clock.
const TIME_EVERY: u32 = 7;

/// The environment's directory.
pub struct Home {
    dir: TempDir,
}

impl Home {
    /// Makes a private directory, in memory if the host has such a directory.
    pub fn create(spec: &Spec) -> Result<Self> {
        check_key_size(NAME, spec, KEY_SIZE_MAX)?;
        let dir = TempDir::with_prefix_in(DIR_PREFIX, MEMORY_DIR)
            .or_else(|_| TempDir::with_prefix(DIR_PREFIX))
            .map_err(TargetError::lost(NAME, "make its directory"))?;
        Ok(Home { dir })
    }
}

impl Service for Home {
    fn endpoint(&self) -> Endpoint {
        Endpoint::new(vec![PathBuf::from(self.dir.path())])
    }

    fn cpu_seconds(&self) -> Option<f64> {
        None
    }
}

/// An open environment, and the state of one client.
pub struct Lmdb {
    environment: Environment,
    session: Session,
}

struct Session {
    database: Database,
    lanes: usize,
    read_mode: ReadMode,
    key: Vec<u8>,
    /// The buffer into which GETs copy values.
    value: Vec<u8>,
    /// PUTs that wait for their transaction.
    waiting: Vec<Op>,
}

impl Lmdb {
    /// Opens the environment, making it if this client is the first.
    pub fn open(spec: &Spec, endpoint: &Endpoint) -> Result<Self> {
        let environment = environment(spec, &endpoint.paths[0])
            .map_err(TargetError::lost(NAME, "open its environment"))?;
        let database =
            environment.open_db(None).map_err(TargetError::lost(NAME, "open its database"))?;
        let session = Session {
            database,
            lanes: spec.lanes,
            read_mode: spec.read_mode,
            key: vec![0; spec.key_size],
            value: Vec::with_capacity(spec.value_size),
            waiting: Vec::with_capacity(spec.lanes),
        };
        Ok(Lmdb { environment, session })
    }
}

impl Target for Lmdb {
    fn load(
        &mut self,
        workload: &Workload,
        records: Range<u64>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let load = |record| Op::load(record, workload.value_size());
        let mut next = records.start;
        while next < records.end {
            let end = records.end.min(next + LOAD_BATCH);
            self.session
                .commit(&self.environment, workload, (next..end).map(load))
                .map_err(TargetError::lost(NAME, "load a batch"))?;
            next = end;
            progress(next - records.start);
        }
        Ok(())
    }

    fn run(&mut self, run: &Run<'_>) -> Result<()> {
        let result = self.session.run(&self.environment, run);
        self.session.waiting.clear();
        result.map_err(TargetError::lost(NAME, "run an operation"))
    }

    fn time_every(&self) -> u32 {
        TIME_EVERY
    }
}

impl Session {
    fn run(&mut self, environment: &Environment, run: &Run<'_>) -> Result<(), Error> {
        let mut snapshot = environment.begin_ro_txn()?;
        let mut gets = 0;
        while let Some(op) = run.next() {
            if op.kind == Kind::Get {
                if gets == self.lanes {
                    snapshot = snapshot.reset().renew()?;
                    gets = 0;
                }
                self.get(&snapshot, run, &op)?;
                gets += 1;
                continue;
            }
            self.waiting.push(op);
            if self.waiting.len() == self.lanes {
                // A snapshot held across the commit would keep its pages from reuse.
                let idle = snapshot.reset();
                self.commit_waiting(environment, run)?;
                snapshot = idle.renew()?;
                gets = 0;
            }
        }
        drop(snapshot);
        self.commit_waiting(environment, run)
    }

    fn get(&mut self, snapshot: &RoTransaction<'_>, run: &Run<'_>, op: &Op) -> Result<(), Error> {
        run.workload().write_key(op.record, &mut self.key);
        match snapshot.get(self.database, &self.key) {
            Ok(found) => {
                let value = match self.read_mode {
                    ReadMode::Pin => touched(found),
                    ReadMode::Copy => {
                        self.value.clear();
                        self.value.extend_from_slice(found);
                        &self.value
                    }
                };
                run.finish(op, Outcome::Found(value));
            }
            Err(Error::NotFound) => run.finish(op, Outcome::Missing),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn commit_waiting(&mut self, environment: &Environment, run: &Run<'_>) -> Result<(), Error> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let waiting = std::mem::take(&mut self.waiting);
        self.commit(environment, run.workload(), waiting.iter().copied())?;
        for op in &waiting {
            run.finish(op, Outcome::Stored);
        }
        self.waiting = waiting;
        self.waiting.clear();
        Ok(())
    }

    fn commit(
        &mut self,
        environment: &Environment,
        workload: &Workload,
        operations: impl Iterator<Item = Op>,
    ) -> Result<(), Error> {
        let mut transaction = environment.begin_rw_txn()?;
        for op in operations {
            workload.write_key(op.record, &mut self.key);
            let place = transaction.reserve(
                self.database,
                &self.key,
                workload.value_size(),
                WriteFlags::empty(),
            )?;
            workload.write_value(op.record, op.version, place);
        }
        transaction.commit()
    }
}

fn environment(spec: &Spec, dir: &Path) -> Result<Environment, Error> {
    let record = (spec.key_size + spec.value_size) as u64 + NODE_OVERHEAD_BYTES;
    // A value that does not fit a leaf takes whole pages.
    let record = if record > PAGE_BYTES / 4 { record.next_multiple_of(PAGE_BYTES) } else { record };
    let map_bytes = spec.records.saturating_mul(record).saturating_mul(ROOM) + MAP_BYTES_MIN;
    Environment::new()
        .set_flags(
            EnvironmentFlags::NO_SYNC
                | EnvironmentFlags::NO_META_SYNC
                | EnvironmentFlags::WRITE_MAP
                | EnvironmentFlags::NO_MEM_INIT,
        )
        .set_map_size(map_bytes as usize)
        .set_max_readers(spec.clients + 64)
        .open(dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::spec;
    use crate::measure::Budget;
    use crate::measure::tests::with_run;

    fn counts(line: &str, records: Range<u64>) -> (u64, u64, u64) {
        let spec = spec(line).unwrap();
        let home = Home::create(&spec).unwrap();
        let mut lmdb = Lmdb::open(&spec, &home.endpoint()).unwrap();
        lmdb.load(&Workload::new(&spec), records, &mut |_| ()).unwrap();
        let budget = Budget { ops: 5000, ns: u64::MAX };
        let (tally, _) = with_run(line, budget, 1, |run| lmdb.run(run).unwrap());
        assert_eq!(tally.wrong_values, 0);
        (tally.gets, tally.get_hits, tally.puts)
    }

    #[test]
    fn finds_all_it_stored_and_finishes_every_operation() {
        for lanes in [1, 7] {
            let line = format!("--records 500 --reads 0.5 --lanes {lanes} --verify");
            let (gets, hits, puts) = counts(&line, 0..500);
            assert_eq!((gets + puts, gets), (5000, hits));
        }
    }

    #[test]
    fn values_of_many_pages_come_back() {
        for mode in ["copy", "pin"] {
            let line = "--records 20 --value-size 100KiB --verify --read-mode";
            let (gets, hits, _) = counts(&format!("{line} {mode}"), 0..20);
            assert_eq!(gets, hits);
        }
    }

    #[test]
    fn what_is_not_there_is_a_miss() {
        let (gets, hits, _) = counts("--records 500 --dist uniform --reads 1", 0..250);
        assert!(hits > 0 && hits < gets, "{hits} of {gets}");
    }

    #[test]
    fn its_directory_is_removed() {
        let home = Home::create(&spec("").unwrap()).unwrap();
        let path = home.dir.path().to_path_buf();
        drop(home);
        assert!(!path.exists());
    }

    #[test]
    fn keys_beyond_its_limit_are_unsuitable() {
        let error = Home::create(&spec("--key-size 512").unwrap()).err().unwrap();
        assert!(error.is_skip() && error.to_string().contains("--key-size"), "{error}");
    }
}
