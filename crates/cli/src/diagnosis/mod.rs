//! `loch doctor`: finds out what this machine can do.
//!
//! Facts come from files below a root (`host.rs`, `rdma.rs`, `modules.rs`), from the RDMA library
//! (`card.rs`), from trials (`self_test/`), and from the nodes of a cluster (`nodes.rs`). They
//! become findings (`finding.rs`). A problem is a finding that keeps the requested fabric from
//! working.

#[cfg(feature = "verbs")]
mod card;
mod finding;
#[cfg(test)]
mod fixtures;
mod host;
mod modules;
mod nodes;
mod rdma;
mod self_test;

use std::path::Path;

use clap::ValueEnum;
use loch::ClusterProbe;
use loch::limits::NODE_BYTES_DEFAULT;
use serde::Serialize;

use finding::{Finding, Mark, Section};
use host::Host;
use nodes::NodeReport;
use rdma::Rdma;
use self_test::Trial;

pub use finding::in_words;

/// Bytes that a node of the default size and its clients lock for RDMA: the region, and buffers.
const LOCKED_BYTES: u64 = NODE_BYTES_DEFAULT + (32 << 20);

/// The fabric that has to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Wanted {
    /// Shared memory: processes of this host
    Shm,
    /// TCP: clusters of machines without RDMA
    Tcp,
    /// RDMA verbs: clusters of machines
    Verbs,
}

impl Wanted {
    /// The mark of a finding that something is missing without which there is no RDMA.
    fn mark_of_missing_rdma(self) -> Mark {
        match self {
            Wanted::Shm | Wanted::Tcp => Mark::Note,
            Wanted::Verbs => Mark::Problem,
        }
    }
}

/// Which RDMA device to look at; a field that is `None` is chosen automatically.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Its name.
    pub device: Option<String>,
    /// Its port.
    pub port: Option<u8>,
    /// The GID of the port.
    pub gid_index: Option<u8>,
}

/// The report. The names of the fields do not change from version to version.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether everything that the fabric needs is there.
    pub ok: bool,
    fabric: Wanted,
    version: &'static str,
    /// Whether this build has RDMA.
    has_verbs: bool,
    host: Host,
    rdma: Rdma,
    /// The device, port and GID that were opened.
    chosen: Option<serde_json::Value>,
    self_test: Vec<Trial>,
    /// The nodes of the cluster that was named.
    nodes: Vec<NodeReport>,
    /// All lines of the report.
    pub findings: Vec<Finding>,
}

/// Looks at this machine, and tries the verbs out unless `has_self_test` is false.
pub fn examine(wanted: Wanted, choice: Choice, has_self_test: bool) -> Report {
    let root = Path::new("/");
    let host = Host::look(root).with_region();
    let rdma = Rdma::look(root, host.kernel.as_deref().unwrap_or_default());
    let mut findings = host.findings(wanted);
    if wanted != Wanted::Tcp {
        findings.extend(rdma.findings(wanted));
    }
    let mut report = Report {
        ok: true,
        fabric: wanted,
        version: env!("CARGO_PKG_VERSION"),
        has_verbs: cfg!(feature = "verbs"),
        host,
        rdma,
        chosen: None,
        self_test: Vec::new(),
        nodes: Vec::new(),
        findings,
    };
    if has_self_test {
        report.take(self_test::over_shm(), Section::SelfTestShm, Mark::Problem);
    }
    if wanted != Wanted::Tcp {
        report.look_at_card(choice, has_self_test);
    }
    report.ok = report.problems() == 0;
    report
}

impl Report {
    /// How many things keep the fabric from working.
    pub fn problems(&self) -> usize {
        self.findings.iter().filter(|one| one.mark == Mark::Problem).count()
    }

    /// Looks at the nodes of a cluster, one after the other.
    pub fn look_at_nodes(&mut self, cluster: ClusterProbe) {
        let (reports, findings) = nodes::look(cluster);
        self.nodes.extend(reports);
        self.findings.extend(findings);
        self.ok = self.problems() == 0;
    }

    fn take(&mut self, trials: Vec<Trial>, section: Section, failing: Mark) {
        self.findings.extend(trials.iter().map(|trial| trial.finding(section, failing)));
        self.self_test.extend(trials);
    }

    #[cfg(feature = "verbs")]
    fn look_at_card(&mut self, choice: Choice, has_self_test: bool) {
        let Choice { device, port, gid_index } = choice;
        let selection = loch_fabric::verbs::Selection { device, port, gid_index };
        let card = card::Card::look(selection);
        self.findings.extend(card.findings(self.fabric));
        let Some(device) = card.device() else { return };
        let info = serde_json::to_value(device.describe());
        self.chosen = Some(info.expect("it is plain data with names for keys"));
        if has_self_test {
            let failing = self.fabric.mark_of_missing_rdma();
            self.take(self_test::over_verbs(device), Section::SelfTestVerbs, failing);
        }
    }

    #[cfg(not(feature = "verbs"))]
    fn look_at_card(&mut self, _choice: Choice, _has_self_test: bool) {
        let missing = self.fabric.mark_of_missing_rdma();
        let finding = Finding::new(missing, Section::Rdma, "this build", "has no RDMA")
            .with_remedy(
                "apt-get install cmake libclang1-14 libclang-common-14-dev, then \
                 cargo install --locked --path crates/cli --features verbs in a checkout of Loch",
            );
        self.findings.push(finding);
    }
}
