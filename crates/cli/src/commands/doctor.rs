//! `loch doctor`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use loch::{ClusterProbe, NodeConfig};

use crate::diagnosis::{Choice, Wanted, examine, in_words};
use crate::outcome::{Answer, Usage, tell};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  loch doctor                        can this machine run a cluster of its own processes?
  loch doctor --fabric verbs         and be part of a cluster of machines, over RDMA?
  loch doctor --fabric verbs --device mlx5_1 --port 2 --gid-index 3
                                     with this device instead of the default one
  loch doctor --fabric tcp --cluster 10.0.0.1:7400,10.0.0.2:7400 --secret secret
                                     can this host use these nodes, and how fast?
  loch doctor --fabric tcp --config /etc/loch/node.toml
                                     the same, with the list and the secret of a configuration
  loch doctor --json | jq '.self_test[] | {fabric, verb, bytes, p50_us, p99_us}'

Each line has a mark: \"ok\", \"note\" (good to know) or \"PROBLEM\" (the fabric will not work), and
under it what to do. The self-test takes half a second a verb at most, over memory of its own: it
needs no node, and disturbs none. Latencies from one host to itself say whether a card works, and
little about a network.

With --fabric tcp it looks at each node of the list: its name, the connection, whether a node answers
there and admits this host, the round trip of short READs, and the bandwidth of long ones (up to a
second and 64 MiB a node). It reads nothing but the beginning of the node's memory, and changes
nothing. Run it on each host: a firewall may be open in one direction only.

Exit code 1: there is a problem.";

/// Find out what this machine can do: shared memory, RDMA, and what is missing for them
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// The fabric that has to work: shared memory, or TCP or RDMA too
    #[arg(long, default_value = "shm")]
    fabric: Wanted,
    /// The RDMA device [default: the first that can be used]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The device's port, from 1 [default: the first that can be used]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..))]
    port: Option<u8>,
    /// The index of the port's address [default: the best one it has]
    #[arg(long, value_name = "INDEX")]
    gid_index: Option<u8>,
    /// With tcp: a node's configuration file, for the list of nodes and the secret or certificates
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// With tcp: the addresses of all nodes, in the order in which the nodes have them
    #[arg(long, value_name = "ADDRESS,ADDRESS…", value_delimiter = ',')]
    cluster: Option<Vec<PathBuf>>,
    /// With tcp: file with the secret of the nodes
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,
    /// Only look, without trying any verb of this host
    #[arg(long)]
    no_self_test: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `loch doctor`.
pub fn run(args: DoctorArgs) -> Result<Answer> {
    let cluster = args.cluster()?;
    let DoctorArgs { device, port, gid_index, .. } = args;
    let mut report = examine(args.fabric, Choice { device, port, gid_index }, !args.no_self_test);
    if let Some(cluster) = cluster {
        report.look_at_nodes(cluster);
    }
    if args.json {
        output::json(&report)?;
    } else {
        output::line(&in_words(&report.findings))?;
    }
    if report.ok {
        return Ok(Answer::Done);
    }
    let problems = report.problems();
    let plural = if problems == 1 { "problem" } else { "problems" };
    tell("doctor", &format!("{problems} {plural}: each is marked, with what to do"));
    Ok(Answer::No)
}

impl DoctorArgs {
    /// The nodes to look at, with tcp.
    fn cluster(&self) -> Result<Option<ClusterProbe>> {
        if self.fabric != Wanted::Tcp {
            let of_nodes = [&self.config, &self.secret].into_iter().any(Option::is_some);
            return match of_nodes || self.cluster.is_some() {
                true => Err(Usage("nodes are looked at with --fabric tcp".into()).into()),
                false => Ok(None),
            };
        }
        let mut config = match &self.config {
            None => NodeConfig::default(),
            Some(path) => NodeConfig::load(path).map_err(|error| Usage(error.to_string()))?,
        };
        if let Some(cluster) = &self.cluster {
            config.cluster.clone_from(cluster);
        }
        if let Some(secret) = &self.secret {
            (config.secret, config.tls) = (Some(secret.clone()), None);
        }
        Ok(Some(ClusterProbe::new(&config)?))
    }
}
