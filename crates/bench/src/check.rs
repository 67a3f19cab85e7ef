//! Checks that the measured systems support the options of their tables and workers.

use loch::limits::BATCH_DEFAULT;
use loch_engines::limits::NODES_MAX;

use crate::error::BenchError;
use crate::options::{Replay, Switch};
use crate::spec::Spec;
use crate::system::{Capabilities, Engine, Fabric, Peer};

/// Checks the switches of the table.
///
/// # Errors
/// [`BenchError::Usage`] for a switch that no system has, and for a policy of eviction that one of
/// them does not have.
pub fn check_table(spec: &Spec, systems: &[Capabilities]) -> Result<(), BenchError> {
    let has_them = systems.iter().any(|system| system.keeps_previous_versions);
    if spec.table.previous_versions == Switch::Off && !has_them {
        return Err(BenchError::usage(
            "--previous-versions: none of these engines has any: add --engine nessie-published, or \
             drop it",
        ));
    }
    if let Some(other) = systems.iter().find(|system| spec.is_cache() && !system.evicts) {
        let evict = Engine::all().map(Engine::capabilities).filter(|engine| engine.evicts);
        let evict: Vec<_> = evict.map(|engine| engine.name).collect();
        return Err(BenchError::usage(format!(
            "--eviction sieve: {} has no tables with that policy, {} have: measure one of these, or \
             drop --eviction",
            other.name,
            evict.join(", ")
        )));
    }
    Ok(())
}

/// Checks that what a file's requests, or peers that evict, need of the other options is there.
///
/// # Errors
/// [`BenchError::Usage`].
pub fn check_cache(spec: &Spec) -> Result<(), BenchError> {
    let has_limit = spec.cache_bytes().is_some();
    if let Some(Replay { file, .. }) = &spec.replay {
        let problem = match spec.fabric {
            Fabric::Sim => "it is not replayed in virtual time: drop it, or --fabric sim",
            _ if !has_limit => {
                "a cache of limited memory replays it: add --eviction sieve --memory SIZE, such as \
                 --memory 64MiB"
            }
            _ => return Ok(()),
        };
        return Err(BenchError::usage(format!("--trace {}: {problem}", file.display())));
    }
    if spec.peers.contains(&Peer::RedisLfu) && !has_limit {
        return Err(BenchError::usage(
            "--peer redis-lfu: it differs from redis in what it evicts: add --eviction sieve \
             --memory SIZE, or measure redis",
        ));
    }
    Ok(())
}

/// Checks the options of workers.
///
/// # Errors
/// [`BenchError::Usage`] for an option that no system has, or a value that one of them cannot have.
pub fn check_servers(spec: &Spec, systems: &[Capabilities]) -> Result<(), BenchError> {
    let servers = &spec.servers;
    let serves = systems.iter().any(|system| system.serves);
    if (servers.workers > 1 || servers.window.is_some()) && !serves {
        let option = if servers.workers > 1 { "--workers" } else { "--window" };
        return Err(BenchError::usage(format!(
            "{option}: none of these engines has workers: add one with --engine, such as \
             nessie-server, or drop it"
        )));
    }
    if servers.dedicated && (!serves || spec.fabric == Fabric::Sim) {
        return Err(BenchError::usage(
            "--dedicated: there are no workers that could sleep: add an engine that has workers, \
             such as nessie-server, on another fabric than sim, or drop it",
        ));
    }
    let is_tuned = servers.batch != BATCH_DEFAULT || servers.out_of_order == Switch::Off;
    if is_tuned && !systems.iter().any(|system| system.packs_operations) {
        let option = if servers.batch != BATCH_DEFAULT { "--batch" } else { "--out-of-order" };
        return Err(BenchError::usage(format!(
            "{option}: none of these engines has packets of operations: add --engine kv-direct, or \
             drop it"
        )));
    }
    if servers.workers > 1
        && let Some(single) = systems.iter().find(|system| system.has_one_server)
    {
        return Err(BenchError::usage(format!(
            "--workers {}: {} has one worker on each node: drop --workers, or that engine",
            servers.workers, single.name
        )));
    }
    match servers.client_hosts {
        0 => Ok(()),
        hosts => check_client_hosts(hosts, spec, systems),
    }
}

fn check_client_hosts(hosts: u32, spec: &Spec, systems: &[Capabilities]) -> Result<(), BenchError> {
    if spec.fabric != Fabric::Sim {
        return Err(BenchError::usage(
            "--client-hosts are simulated: add --fabric sim, or drop it",
        ));
    }
    if let Some(other) = systems.iter().find(|system| !system.lets_clients_be_apart) {
        return Err(BenchError::usage(format!(
            "--client-hosts: clients of {} have memory at a node, and run on its host; it is for \
             --engine herd, and for the papers' FaRM and echo",
            other.name
        )));
    }
    if u64::from(spec.nodes) + u64::from(hosts) > NODES_MAX as u64 {
        return Err(BenchError::usage(format!(
            "--client-hosts {hosts}: together with --nodes there are up to {NODES_MAX} hosts"
        )));
    }
    Ok(())
}
