//! Loch's gateway, asked by the clients of the peers whose protocols it speaks.
//!
//! A node and a `loch gateway` in front of it, both of this very binary. The gateway holds no data:
//! the node has the memory that the records need, or, as a cache, the memory of the run's options.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use loch::ByteSize;

use super::loch::check_run;
use super::server::{Place, Server, not_started, threads};
use super::{Endpoint, Result, Service, System};
use crate::error::TargetError;
use crate::options::{TABLE, TableOptions};
use crate::process::own_command;
use crate::spec::Spec;
use crate::system::{Engine, Fabric};
use crate::tuning::{Cores, Tuning};

/// The engine of the table behind a gateway.
const ENGINE: &str = "nessie";

/// A running gateway. Fields are dropped in order: the gateway before its node.
pub struct Gateway {
    server: Server,
    node: Box<dyn Service>,
}

/// Starts a node, and a gateway in front of it that listens at the address of this option.
pub fn start(
    name: &'static str,
    listens: &str,
    spec: &Spec,
    interrupted: &AtomicBool,
) -> Result<Gateway> {
    let engine: Engine = ENGINE.parse().expect("it is one of the registry");
    let of_node = spec_of_node(spec);
    check_run(engine, &of_node)
        .map_err(|error| TargetError::Unsuitable { peer: name, reason: error.to_string() })?;
    let node = engine.start(&of_node, interrupted)?;
    let command = own_command("gateway").map_err(|error| not_started(name, &error))?;
    let server = Server::start(name, command, spec.peer_transport, interrupted, |_, place| {
        arguments(listens, spec, &node.endpoint().paths[0], place)
    })?;
    Ok(Gateway { server, node })
}

/// The run as the node sees it: the threads of the gateway are its clients, and one node has the
/// memory of all nodes.
fn spec_of_node(spec: &Spec) -> Spec {
    let nodes = u64::from(spec.nodes);
    let table = TableOptions {
        memory: spec.cache_bytes().map(ByteSize::new),
        index_slots: spec.table.index_slots.map(|slots| slots.saturating_mul(nodes)),
        ..spec.table
    };
    Spec {
        fabric: Fabric::Shm,
        nodes: 1,
        clients: threads(spec).into(),
        // A connection has one long value under way; short ones fit into the head-room.
        lanes: spec.clients as usize,
        encrypt: false,
        far: false,
        table,
        ..spec.clone()
    }
}

fn arguments(listens: &str, spec: &Spec, node: &Path, place: &Place) -> Vec<String> {
    let at = match place {
        Place::Unix(socket) => format!("unix:{}", socket.display()),
        Place::Tcp(at) => at.to_string(),
    };
    let options = [
        ("--socket", node.display().to_string()),
        ("--table", TABLE.into()),
        ("--threads", threads(spec).to_string()),
        (listens, at),
    ];
    options.into_iter().flat_map(|(option, value)| [option.into(), value]).collect()
}

impl Service for Gateway {
    fn endpoint(&self) -> Endpoint {
        self.server.endpoint()
    }

    fn cpu_seconds(&self) -> Option<f64> {
        self.server.cpu_seconds().zip(self.node.cpu_seconds()).map(|(own, node)| own + node)
    }

    fn tunings(&self) -> &'static [Tuning] {
        self.server.tunings()
    }

    /// The node has no place: it sleeps while its clients work.
    fn place(&self, cores: &Cores, tuning: Tuning) -> std::io::Result<()> {
        self.server.place(cores, tuning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::spec;

    #[test]
    fn the_node_has_the_memory_of_all_nodes_and_the_gateways_threads_as_clients() {
        let line = "--nodes 3 --clients 5 --lanes 32 --fabric tcp --encrypt on --peer-threads 2 \
                    --eviction sieve --memory 8MiB --index-slots 100";
        let of_node = spec_of_node(&spec(line).unwrap());
        assert_eq!((of_node.nodes, of_node.clients, of_node.lanes), (1, 2, 5));
        assert_eq!((of_node.fabric, of_node.encrypt), (Fabric::Shm, false));
        let table = of_node.table;
        assert_eq!((table.memory, table.index_slots), (Some(ByteSize::new(24 << 20)), Some(300)));
    }

    #[test]
    fn only_a_cache_has_a_limit() {
        let of_node = spec_of_node(&spec("--memory 8MiB").unwrap());
        assert_eq!(of_node.table.memory, None);
    }

    #[test]
    fn it_listens_at_its_place_alone() {
        let spec = spec("--peer-threads 3").unwrap();
        for (place, at) in [
            (Place::Unix("/dir/socket".into()), "--resp unix:/dir/socket"),
            (Place::Tcp(([127, 0, 0, 1], 10_001).into()), "--resp 127.0.0.1:10001"),
        ] {
            let arguments = arguments("--resp", &spec, Path::new("/node"), &place).join(" ");
            assert_eq!(arguments, format!("--socket /node --table bench --threads 3 {at}"));
        }
    }
}
