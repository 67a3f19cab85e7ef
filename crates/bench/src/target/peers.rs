//! The peers, with which Loch is compared, as systems.

use std::sync::atomic::AtomicBool;

use super::{
    Endpoint, Result, Service, System, Target, check_key_size, gateway, lmdb, maps, memcached,
    redis,
};
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
            Peer::RedisLfu => "redis-lfu",
            Peer::GatewayMemcached => "gateway-memcached",
            Peer::GatewayResp => "gateway-resp",
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
        let keeps_all = matches!(self, Peer::Lmdb | Peer::Papaya | Peer::Hashbrown);
        if spec.replay.is_some() && keeps_all {
            let reason = "it does not evict, and --trace is for caches".into();
            return Err(TargetError::Unsuitable { peer: self.name(), reason });
        }
        if matches!(self, Peer::Memcached | Peer::GatewayMemcached) {
            check_key_size(self.name(), spec, memcached::KEY_SIZE_MAX)?;
        }
        Ok(match self {
            Peer::Memcached => Box::new(memcached::start(spec, interrupted)?),
            Peer::Redis => Box::new(redis::start(spec, "allkeys-lru", interrupted)?),
            Peer::RedisLfu => Box::new(redis::start(spec, "allkeys-lfu", interrupted)?),
            Peer::GatewayMemcached => {
                Box::new(gateway::start(self.name(), "--memcached", spec, interrupted)?)
            }
            Peer::GatewayResp => {
                Box::new(gateway::start(self.name(), "--resp", spec, interrupted)?)
            }
            Peer::Lmdb => Box::new(lmdb::Home::create(spec)?),
            Peer::Papaya | Peer::Hashbrown => Box::new(maps::Nowhere::create(self.name(), spec)?),
        })
    }

    fn connect(&self, spec: &Spec, endpoint: &Endpoint, _client: u32) -> Result<Box<dyn Target>> {
        Ok(match self {
            Peer::Memcached | Peer::GatewayMemcached => {
                Box::new(memcached::connect(self.name(), spec, endpoint)?)
            }
            Peer::Redis | Peer::RedisLfu | Peer::GatewayResp => {
                Box::new(redis::connect(self.name(), spec, endpoint)?)
            }
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
