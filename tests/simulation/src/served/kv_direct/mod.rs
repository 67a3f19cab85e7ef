//! kv-direct: processors with little memory whose accesses take time, and clients with many lanes
//! and packets.
//!
//! # Values that are lost with a processor
//! A processor's values are in its process's memory. When it dies, each of its keys gets a DELETE
//! that no client called, at that very moment, which may have taken effect or not
//! ([`Recorder::lost`]).
//!
//! # Other checks
//! Now and then, when a processor has no work, and at the end, its memory must be in order
//! (`Storage::check`): every entry is where a lookup finds it, and every slab is used or free.

mod config;
mod memory;
mod operations;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use loch_engines::kv_direct::key::KeyHash;
use loch_engines::kv_direct::slab::Daemon;
use loch_engines::kv_direct::storage::{Plan, Storage};
use loch_engines::kv_direct::{Access, Client, Worker};
use loch_engines::requests::{Area, RequestMap, Turns, WorkerId};
use loch_fabric::Fabric;
use loch_fabric::sim::{ProcessId, SimEndpoint};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use self::config::Config;
use self::memory::{Functions, Memory, memory};
use self::operations::{Asker, name_of};
use super::cluster::{Engine, Seat};
use super::recorder::Recorder;
use super::setting::{Setting, places};

const SEED: u64 = 9;
/// One in this many idle turns is used to check the memory.
const TURNS_A_CHECK: u32 = 50;
/// The number of looks whether the processors have finished all work.
const LOOKS_MAX: u32 = 1_000;

/// A table of kv-direct.
pub struct KvDirect {
    map: Arc<RequestMap>,
    config: Rc<Config>,
    keys: u64,
    /// The processors that live.
    posts: RefCell<Vec<Rc<Post>>>,
    forwarded: Cell<u64>,
}

/// A processor, and the daemon of its host.
struct Post {
    worker: Worker<SimEndpoint, Memory, Functions>,
    daemon: RefCell<Daemon>,
    is_idle: Cell<bool>,
}

impl Post {
    fn check(&self) -> Result<(), String> {
        while self.daemon.borrow_mut().turn() {}
        match &self.worker.storage().check(SEED).broken[..] {
            [] => Ok(()),
            broken => Err(format!("a processor's memory is not in order: {broken:?}")),
        }
    }
}

/// A processor's place, which is empty when this is dropped.
struct AtPost {
    engine: Rc<KvDirect>,
    post: Rc<Post>,
}

impl Drop for AtPost {
    fn drop(&mut self) {
        self.engine.posts.borrow_mut().retain(|post| !Rc::ptr_eq(post, &self.post));
        let forwarded = self.post.worker.counts().forwarded;
        self.engine.forwarded.set(self.engine.forwarded.get() + forwarded);
    }
}

impl Engine for KvDirect {
    type Client = Asker;
    const SENDS: bool = false;

    fn draw(random: &mut ChaCha8Rng) -> Setting {
        config::setting(random)
    }

    fn new(setting: &Setting) -> Self {
        let config = Config::draw(setting);
        let area = Area::new(setting.service, setting.nodes).unwrap();
        let bases = places(setting).into_iter().map(|(base, _)| base).collect();
        Self {
            map: Arc::new(RequestMap::new(area, bases)),
            config: Rc::new(config),
            keys: setting.keys,
            posts: RefCell::default(),
            forwarded: Cell::new(0),
        }
    }

    fn requests(&self) -> &RequestMap {
        &self.map
    }

    fn bytes(&self) -> u64 {
        self.map.area().bytes()
    }

    fn client(&self, seat: Seat, setting: &Setting, _: &[ProcessId]) -> Asker {
        let access = Access {
            map: self.map.clone(),
            seed: SEED,
            value_bytes_max: self.config.options.value_bytes_max,
            batch: self.config.batch,
        };
        let node = u16::from(seat.session.home().0);
        let client = Client::new(seat.endpoint, access, &seat.session, node, setting.timing);
        Asker::new(client, self.config.clone())
    }

    async fn serve(self: Rc<Self>, seat: Seat, id: WorkerId, _: Vec<u64>) {
        let plan = Plan::new(&self.config.options).expect("it is drawn so");
        let mut random = ChaCha8Rng::seed_from_u64(seat.endpoint.random());
        let memory = memory(&self.config, &plan, random.random());
        let pools = plan.pools();
        let storage = Storage::new(memory, &plan, pools.clone());
        let settings = self.config.settings;
        let (sessions, map) = (seat.sessions(), &self.map);
        let opened =
            Worker::open(seat.endpoint, map, id, storage, Functions, SEED, settings, sessions);
        let worker = opened.unwrap();
        let daemon = RefCell::new(Daemon::new(pools.clone()));
        let post = Rc::new(Post { worker, daemon, is_idle: Cell::new(false) });
        self.posts.borrow_mut().push(post.clone());
        let _at_post = AtPost { engine: self.clone(), post: post.clone() };
        let mut turns = post.worker.serve();
        loop {
            let is_busy = turns.turn().expect("its own memory is there");
            post.is_idle.set(!is_busy);
            if random.random_bool(self.config.daemon_turns) {
                post.daemon.borrow_mut().turn();
            }
            if !is_busy && random.random_ratio(1, TURNS_A_CHECK) {
                post.check().unwrap_or_else(|broken| panic!("{broken}\n{}", self.told()));
            }
            post.worker.fabric().yield_now().await;
        }
    }

    fn lost(&self, id: WorkerId, recorder: &Recorder) {
        let area = self.map.area();
        let workers = u32::from(area.service().workers);
        let partition = u32::from(id.node) * workers + u32::from(id.worker);
        for key in 0..self.keys {
            let hash = KeyHash::of(SEED, &name_of(key));
            if hash.processor(u32::from(area.nodes()) * workers) == partition {
                recorder.lost(key);
            }
        }
    }

    async fn audit(&self, seat: Seat, _: Vec<Vec<u64>>) -> Result<(), String> {
        for _ in 0..LOOKS_MAX {
            if self.posts.borrow().iter().all(|post| post.is_idle.get()) {
                return self.posts.borrow().iter().try_for_each(|post| post.check());
            }
            // The processors may still be executing requests that no client waits for any more.
            seat.endpoint.pause(10).await;
        }
        Err("a processor is still at work, and nobody has asked for anything".into())
    }

    fn forwarded(&self) -> u64 {
        let posts = self.posts.borrow();
        let now: u64 = posts.iter().map(|post| post.worker.counts().forwarded).sum();
        self.forwarded.get() + now
    }

    fn told(&self) -> String {
        format!("{:?}", self.config)
    }
}
