//! The peers, with which Loch is compared, as systems.

use std::sync::atomic::AtomicBool;

use super::{Endpoint, Result, Service, System, Target, lmdb, maps, memcached, redis};
use crate::error::TargetError;
use crate::measured::Measured;
use crate::progress::Progress;
use crate::spec::Spec;
use crate::system::{Fabric, Peer};

impl System for Peer {
    fn name(&self) -> &'static str {
        match self {
            Peer::Memcached => "memcached",
            Peer::Redis => "redis",
            Peer::Lmdb => "lmdb",
            Peer::Papaya => "papaya",
            Peer::Hashbrown => "hashbrown",
        }
    }

    fn is_loch(&self) -> bool {
        false
    }

    fn reads_in_place(&self, _: Fabric) -> bool {
        *self == Peer::Lmdb
    }

    fn start(&self, spec: &Spec, interrupted: &AtomicBool) -> Result<Box<dyn Service>> {
        Ok(match self {
            Peer::Memcached => Box::new(memcached::start(spec, interrupted)?),
            Peer::Redis => Box::new(redis::start(spec, interrupted)?),
            Peer::Lmdb => Box::new(lmdb::Home::create(spec)?),
            Peer::Papaya | Peer::Hashbrown => Box::new(maps::Nowhere::create(self.name(), spec)?),
        })
    }

    fn connect(&self, spec: &Spec, endpoint: &Endpoint, _client: u32) -> Result<Box<dyn Target>> {
        Ok(match self {
            Peer::Memcached => Box::new(memcached::connect(spec, endpoint)?),
            Peer::Redis => Box::new(redis::connect(spec, endpoint)?),
            Peer::Lmdb => Box::new(lmdb::Lmdb::open(spec, endpoint)?),
            Peer::Papaya => maps::papaya(spec),
            Peer::Hashbrown => maps::hashbrown(spec),
        })
    }

    fn simulate(&self, _: &Spec, _: &Progress, _: &AtomicBool) -> Result<Measured> {
        Err(TargetError::Impossible(format!(
            "--peer {}: it is measured in real time alone, without --fabric sim",
            self.name()
        )))
    }
}
