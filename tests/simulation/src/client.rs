//! A client of a table of either protocol.

use std::sync::Arc;

use loch_engines::epoch::Session;
use loch_engines::nessie::geometry::Protocol;
use loch_engines::nessie::hash::TableMap;
#[cfg(feature = "planted")]
use loch_engines::nessie::ite::Place;
use loch_engines::nessie::{
    self, CacheLimits, CheckReport, Conditional, Counts, Expect, PutOptions, Scrubbed, published,
};
use loch_engines::operation::Value;
use loch_engines::{EngineError, Kv};
use loch_fabric::Buf;
use loch_fabric::sim::SimEndpoint;

/// A client: of the protocol that its table's shape says.
pub enum Client {
    Loch(nessie::Client<SimEndpoint>),
    Published(published::Client<SimEndpoint>),
}

/// Calls a method that both have.
macro_rules! both {
    ($client:expr, $method:ident($($argument:expr),*)) => {
        match $client {
            Client::Loch(client) => client.$method($($argument),*),
            Client::Published(client) => client.$method($($argument),*),
        }
    };
    ($client:expr, await $method:ident($($argument:expr),*)) => {
        match $client {
            Client::Loch(client) => client.$method($($argument),*).await,
            Client::Published(client) => client.$method($($argument),*).await,
        }
    };
}

impl Client {
    pub fn new(
        endpoint: SimEndpoint,
        map: Arc<TableMap>,
        session: Session,
        cache: CacheLimits,
        timeout_us: u64,
    ) -> Self {
        match map.shape.protocol {
            Protocol::Loch => {
                Self::Loch(nessie::Client::new(endpoint, map, session, cache, timeout_us))
            }
            Protocol::Published { .. } => {
                Self::Published(published::Client::new(endpoint, map, session, cache, timeout_us))
            }
        }
    }

    pub fn fabric(&self) -> &SimEndpoint {
        both!(self, fabric())
    }

    pub fn counts(&self) -> &Counts {
        both!(self, counts())
    }

    pub fn incarnation(&self) -> u64 {
        both!(self, incarnation())
    }

    pub fn set_quarantine(&self, entries: usize) {
        both!(self, set_quarantine(entries))
    }

    pub async fn get(&self, key: &[u8], buf: Buf) -> Result<Option<Value>, EngineError> {
        both!(self, await get(key, buf))
    }

    pub async fn put(
        &self,
        key: &[u8],
        value: &[u8],
        options: PutOptions,
    ) -> Result<u64, EngineError> {
        both!(self, await put(key, value, options))
    }

    pub async fn put_if(
        &self,
        key: &[u8],
        value: &[u8],
        expect: Expect,
        options: PutOptions,
    ) -> Result<Conditional, EngineError> {
        both!(self, await put_if(key, value, expect, options))
    }

    pub async fn delete(&self, key: &[u8]) -> Result<bool, EngineError> {
        both!(self, await delete(key))
    }

    pub async fn append(&self, key: &[u8], bytes: &[u8]) -> Result<u64, EngineError> {
        both!(self, await append(key, bytes))
    }

    pub async fn fetch_add(&self, key: &[u8], add: u64) -> Result<u64, EngineError> {
        both!(self, await fetch_add(key, add))
    }

    #[cfg(feature = "planted")]
    pub fn remembers(&self, place: Place, generation: u64, home_epoch: u64) -> bool {
        both!(self, remembers(place, generation, home_epoch))
    }

    #[cfg(feature = "planted")]
    pub async fn wander(&self, key: &[u8]) -> Result<bool, EngineError> {
        both!(self, await wander(key))
    }

    pub async fn detach(&self) -> Result<(), EngineError> {
        both!(self, await detach())
    }

    pub async fn scrub(&self, dti: u8, wait_us: u64) -> Result<Scrubbed, EngineError> {
        both!(self, await scrub(dti, wait_us))
    }

    pub async fn check(&self) -> Result<CheckReport, EngineError> {
        both!(self, await check())
    }
}
