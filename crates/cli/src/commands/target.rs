//! The cluster that a command uses, and its table.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use loch::{Cluster, ConnectOptions, NodeInfo, Table, TableInfo};

use crate::duration::parse_duration;

/// The cluster of a command.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    /// Socket of a node of the cluster [default: $LOCH_SOCKET, else one of this user's]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// How long to wait for nodes that are not up yet
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    wait: Duration,
}

/// The table of a command.
#[derive(Debug, Args)]
pub struct TableArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Table of the cluster
    #[arg(long, value_name = "NAME", default_value = "default")]
    table: String,
}

/// The access that a command needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading; takes no session slot, so it works when all of them are taken.
    Read,
    /// Changing values too.
    Write,
}

impl ClusterArgs {
    /// Attaches to the cluster.
    pub fn connect(&self, access: Access) -> Result<Cluster> {
        self.connect_within(access, self.wait)
    }

    fn connect_within(&self, access: Access, wait: Duration) -> Result<Cluster> {
        let socket = self.socket.clone().unwrap_or_else(loch::default_socket);
        let options = ConnectOptions {
            read_only: access == Access::Read,
            connect_timeout: wait,
            ..ConnectOptions::default()
        };
        Ok(Cluster::connect_with(socket, options)?)
    }
}

impl TableArgs {
    /// Attaches to the cluster.
    pub fn connect(&self, access: Access) -> Result<Cluster> {
        let cluster = self.cluster.connect(access)?;
        let tables = cluster.info().tables;
        let table = tables.iter().find(|table| table.name == self.table);
        if access == Access::Read && table.is_some_and(TableInfo::reads_are_requests) {
            return self.cluster.connect(Access::Write);
        }
        Ok(cluster)
    }

    /// The cluster's nodes, if one answers at once.
    pub fn nodes_now(&self) -> Option<Vec<NodeInfo>> {
        let cluster = self.cluster.connect_within(Access::Read, Duration::ZERO).ok()?;
        Some(cluster.info().nodes)
    }

    /// The name of the table.
    pub fn name(&self) -> &str {
        &self.table
    }

    /// Opens the table.
    pub fn open(&self, cluster: &Cluster) -> Result<Table> {
        Ok(cluster.table(&self.table)?)
    }

    /// Bytes of the longest value that the table takes.
    pub fn value_bytes_max(&self, cluster: &Cluster) -> Option<u64> {
        let tables = cluster.info().tables;
        let table = tables.iter().find(|table| table.name == self.table);
        table.map(|table| table.value_bytes_max)
    }
}
