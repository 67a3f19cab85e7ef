//! The nodes of a cluster, as this host reaches them over TCP: names, connections, whether they
//! admit this host, and what READs cost.

use std::time::{Duration, Instant};

use loch::{ClusterProbe, NodeProbe, ProbeError, ProbeReads};
use loch_bench::tally::{Latencies, latencies};
use serde::Serialize;

use super::finding::{Finding, Mark, Section};

/// Short READs, for the round trip: so many at most, in this time at most.
const SHORT: (usize, u64, Duration) = (64, 500, Duration::from_millis(500));
/// The first of them, which find caches cold and threads asleep, and are not counted.
const WARM_UP: u64 = 10;
/// Long READs, for the bandwidth: so many at a time, of so many bytes.
const LONG: (usize, usize) = (8, 256 << 10);
/// Bytes of all of them at most, in this time at most.
const LONG_MAX: (u64, Duration) = (64 << 20, Duration::from_millis(500));

/// A median round trip above this is unusual inside a data centre.
const SLOW_US: f64 = 1000.0;
/// One in a hundred takes so many times the median, and more than [`SLOW_US`]: that is uneven.
const UNEVEN: f64 = 10.0;
/// Less than a link of 1 Gbit/s brings, which is 117 MB/s.
const NARROW_MB_S: f64 = 100.0;

/// The observations at one node. The names of the fields do not change from version to version.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeReport {
    /// The node's address, as the list has it.
    pub address: String,
    /// The addresses of its name.
    pub found: Vec<String>,
    /// Whether the address is this host's.
    pub is_here: bool,
    /// How long a TCP connection took.
    pub connect_us: Option<f64>,
    /// The node's name, if it has admitted this host.
    pub name: Option<String>,
    /// Short READs that were counted, of [`SHORT`] bytes.
    pub reads: u64,
    /// Half of them took no longer than this.
    pub p50_us: Option<f64>,
    /// 99 of a hundred took no longer than this.
    pub p99_us: Option<f64>,
    /// Million bytes a second of long READs.
    pub mb_s: Option<f64>,
    /// The reason why the node cannot be used.
    pub error: Option<String>,
}

/// Looks at all nodes, one after the other, so that they do not share the network.
pub fn look(mut cluster: ClusterProbe) -> (Vec<NodeReport>, Vec<Finding>) {
    let (mut reports, mut findings) = (Vec::new(), Vec::new());
    if cluster.addresses().is_empty() {
        let text = "none was named: only this host was looked at";
        let remedy = "--cluster A:PORT,B:PORT --secret FILE, or --config FILE, as for `loch serve`";
        let finding = Finding::new(Mark::Note, Section::Nodes, "nodes", text).with_remedy(remedy);
        return (reports, vec![finding]);
    }
    for number in 0..cluster.addresses().len() {
        let (report, of_it) = look_at(cluster.probe(number));
        reports.push(report);
        findings.extend(of_it);
    }
    if !reports.iter().any(|report| report.is_here) {
        let text = "none of the nodes is at an address of this host";
        let remedy = "run it on the hosts of the nodes too: each of them has to reach all others";
        let finding = Finding::new(Mark::Note, Section::Nodes, "this host", text);
        findings.push(finding.with_remedy(remedy));
    }
    (reports, findings)
}

fn look_at(probe: NodeProbe) -> (NodeReport, Vec<Finding>) {
    let NodeProbe { address, found, is_here, connected, outcome, .. } = probe;
    let mut report = NodeReport {
        found: found.iter().map(ToString::to_string).collect(),
        is_here,
        connect_us: connected.map(|took| took.as_secs_f64() * 1e6),
        address,
        name: None,
        reads: 0,
        p50_us: None,
        p99_us: None,
        mb_s: None,
        error: None,
    };
    let mut findings: Vec<_> = report.connection().into_iter().collect();
    match outcome {
        Ok(facts) => {
            let (node, nodes) = (facts.node, facts.nodes);
            let text = format!("node {node} of {nodes}, {:?}: it admits this host", facts.name);
            findings.push(report.ok("node", text));
            report.name = Some(facts.name);
            match facts.reads {
                Ok(reads) => findings.extend(report.measure(&reads)),
                Err(error) => findings.push(report.failed("READ", &error)),
            }
        }
        Err(error) => findings.push(report.failed("node", &error)),
    }
    (report, findings)
}

impl NodeReport {
    fn name_of(&self, what: &str) -> String {
        format!("{} {what}", self.address)
    }

    fn ok(&self, what: &str, text: String) -> Finding {
        Finding::ok(Section::Nodes, &self.name_of(what), text)
    }

    fn note(&self, what: &str, text: String, remedy: &str) -> Finding {
        let name = self.name_of(what);
        Finding::new(Mark::Note, Section::Nodes, &name, text).with_remedy(remedy)
    }

    fn problem(&mut self, what: &str, text: String, remedy: &str) -> Finding {
        self.error.get_or_insert(text.clone());
        Finding { mark: Mark::Problem, ..self.note(what, text, remedy) }
    }

    fn connection(&self) -> Option<Finding> {
        let ms = self.connect_us? / 1000.0;
        let here = if self.is_here { ", this host" } else { "" };
        let text = format!("{}{here}: connects in {ms:.2} ms", self.found.join(", "));
        Some(self.ok("connection", text))
    }

    fn failed(&mut self, what: &str, error: &ProbeError) -> Finding {
        match error {
            // The host is there and its firewall lets its own connections through.
            ProbeError::Refused if self.is_here => {
                let text = "no node runs at this address, which is this host's".to_owned();
                self.problem(what, text, "start it: `loch serve`, with this address as --listen")
            }
            // Whether the node is well is not known, and nothing says that it is not.
            ProbeError::NoCredentials(_) => self.note(what, error.to_string(), error.remedy()),
            _ => self.problem(what, error.to_string(), error.remedy()),
        }
    }

    /// Measures short and long READs.
    fn measure(&mut self, reads: &ProbeReads) -> Vec<Finding> {
        match round_trips(reads) {
            Ok(took) => self.keep_latencies(&took),
            Err(error) => {
                let text = format!("READs of {} B: {error}", SHORT.0);
                return vec![self.problem("READ", text, "look at the log of the node")];
            }
        }
        let mut findings = vec![self.round_trip()];
        let ((lanes, len), (bytes, time_max)) = (LONG, LONG_MAX);
        findings.push(match reads.read(len, lanes, bytes, time_max) {
            Ok((come, took)) => {
                self.mb_s = Some(come as f64 / 1e6 / took.as_secs_f64());
                self.bandwidth()
            }
            Err(error) => {
                let text = format!("READs of {} KiB: {error}; short ones come", len >> 10);
                let remedy = "packets of full length may be lost: compare the MTU on the way \
                              (`ip link`, `ping -M do -s 1472 HOST`)";
                self.problem("bandwidth", text, remedy)
            }
        });
        findings
    }

    fn keep_latencies(&mut self, took: &Latencies) {
        let us = |quantile| Some(took.value_at_quantile(quantile) as f64 / 1000.0);
        (self.reads, self.p50_us, self.p99_us) = (took.len(), us(0.5), us(0.99));
    }

    fn round_trip(&self) -> Finding {
        let (p50, p99) = (self.p50_us.unwrap_or(0.0), self.p99_us.unwrap_or(0.0));
        let (reads, bytes) = (self.reads, SHORT.0);
        let text = format!("p50 {p50:.0} µs, p99 {p99:.0} µs of {reads} READs of {bytes} B");
        if p50 > SLOW_US {
            let remedy = "more than 1 ms is unusual inside a data centre: are the hosts far apart, \
                          are their processors busy, does a virtual network lie between (`ping`)?";
            return self.note("round trip", text, remedy);
        }
        if p99 > SLOW_US && p99 > UNEVEN * p50 {
            let remedy = "some take much longer than the others: busy processors, or lost packets \
                          (`nstat -az TcpRetransSegs` before and after)";
            return self.note("round trip", text, remedy);
        }
        self.ok("round trip", text)
    }

    fn bandwidth(&self) -> Finding {
        let mb_s = self.mb_s.unwrap_or(0.0);
        let text = format!("{mb_s:.0} MB/s from it, over one connection");
        if mb_s < NARROW_MB_S {
            let remedy = "less than a link of 1 Gbit/s brings: its speed (`ethtool DEVICE`), other \
                          traffic, lost packets";
            return self.note("bandwidth", text, remedy);
        }
        self.ok("bandwidth", text)
    }
}

fn round_trips(reads: &ProbeReads) -> Result<Latencies, String> {
    let (len, count, time_max) = SHORT;
    let (begun, mut took) = (Instant::now(), latencies());
    for number in 0..WARM_UP + count {
        let (_, once) = reads.read(len, 1, len as u64, time_max)?;
        if number >= WARM_UP {
            took.saturating_record(once.as_nanos() as u64);
        }
        if !took.is_empty() && begun.elapsed() > time_max {
            break;
        }
    }
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> NodeReport {
        NodeReport {
            address: "b:7400".into(),
            found: vec!["10.0.0.2".into()],
            is_here: false,
            connect_us: Some(210.0),
            name: None,
            reads: 100,
            p50_us: Some(80.0),
            p99_us: Some(200.0),
            mb_s: Some(1100.0),
            error: None,
        }
    }

    #[test]
    fn usual_numbers_are_ok_and_unusual_ones_are_noted_with_a_remedy() {
        let usual = report();
        for finding in [usual.round_trip(), usual.bandwidth(), usual.connection().unwrap()] {
            assert_eq!((finding.mark, finding.remedy), (Mark::Ok, None));
        }
        let far = NodeReport { p50_us: Some(2500.0), p99_us: Some(2600.0), ..report() };
        let uneven = NodeReport { p99_us: Some(40_000.0), ..report() };
        let narrow = NodeReport { mb_s: Some(11.0), ..report() };
        for (finding, word) in [
            (far.round_trip(), "far apart"),
            (uneven.round_trip(), "lost packets"),
            (narrow.bandwidth(), "ethtool"),
        ] {
            assert_eq!(finding.mark, Mark::Note);
            assert!(finding.remedy.as_ref().is_some_and(|it| it.contains(word)), "{finding:?}");
        }
    }

    #[test]
    fn a_node_that_does_not_run_on_this_host_is_told_apart_from_a_firewall() {
        let mut report = report();
        let refused = report.failed("node", &ProbeError::Refused);
        assert!(refused.remedy.unwrap().contains("firewall"));
        report.is_here = true;
        let refused = report.failed("node", &ProbeError::Refused);
        assert!(refused.text.contains("no node runs") && refused.mark == Mark::Problem);
        assert_eq!(report.error.as_deref(), Some("it refuses connections"), "the first is kept");
    }

    #[test]
    fn without_a_secret_a_node_is_no_problem() {
        let mut report = report();
        let note = report.failed("node", &ProbeError::NoCredentials("a secret"));
        assert_eq!((note.mark, report.error), (Mark::Note, None));
        assert!(note.remedy.unwrap().contains("--secret"));
    }
}
