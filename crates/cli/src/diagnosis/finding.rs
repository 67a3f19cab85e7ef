//! Findings: the results of a look at the machine, for people and as JSON.

use serde::Serialize;

/// What a finding means for the requested fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mark {
    /// It is as it should be.
    Ok,
    /// Worth knowing; the fabric works all the same.
    Note,
    /// The fabric does not work as long as this is so.
    Problem,
}

/// The section of a finding, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Section {
    /// Facts that every node and client needs.
    Host,
    /// RDMA.
    Rdma,
    /// Verbs that were tried out over shared memory.
    SelfTestShm,
    /// Verbs that were tried out over the RDMA device.
    SelfTestVerbs,
    /// The nodes of a cluster, as they can be reached from this host.
    Nodes,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its section.
    pub section: Section,
    /// The name of the check; does not change from version to version.
    pub name: String,
    /// Its mark.
    pub mark: Mark,
    /// The finding in words.
    pub text: String,
    /// The remedy, in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Section {
    /// All of them.
    pub const ALL: [Section; 5] = [
        Section::Host,
        Section::Rdma,
        Section::SelfTestShm,
        Section::SelfTestVerbs,
        Section::Nodes,
    ];

    fn title(self) -> &'static str {
        match self {
            Section::Host => "this host",
            Section::Rdma => "RDMA",
            Section::SelfTestShm => "self-test over shared memory",
            Section::SelfTestVerbs => "self-test over RDMA, from this host to itself",
            Section::Nodes => "the nodes, as this host reaches them over TCP",
        }
    }
}

impl Finding {
    /// A finding that is as it should be.
    pub fn ok(section: Section, name: &str, text: impl Into<String>) -> Self {
        let (name, text) = (name.to_owned(), text.into());
        Self { section, name, mark: Mark::Ok, text, remedy: None }
    }

    /// A finding that is not, or is worth knowing.
    pub fn new(mark: Mark, section: Section, name: &str, text: impl Into<String>) -> Self {
        Self { mark, ..Self::ok(section, name, text) }
    }

    /// Says what to do about it.
    pub fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

/// The findings as people read them: a line each, and under it the remedy.
pub fn in_words(findings: &[Finding]) -> String {
    let width = findings.iter().map(|one| one.name.chars().count()).max().unwrap_or(0);
    let mut paragraphs = Vec::new();
    for section in Section::ALL {
        let of_it = findings.iter().filter(|one| one.section == section);
        let lines: Vec<String> = of_it.map(|one| line(one, width)).collect();
        if !lines.is_empty() {
            paragraphs.push(format!("{}\n{}", section.title(), lines.join("\n")));
        }
    }
    paragraphs.join("\n\n")
}

fn line(finding: &Finding, width: usize) -> String {
    let mark = match finding.mark {
        Mark::Ok => "ok",
        Mark::Note => "note",
        Mark::Problem => "PROBLEM",
    };
    let mut line = format!("  {mark:<7}  {:<width$}  {}", finding.name, finding.text);
    if let Some(remedy) = &finding.remedy {
        line += &format!("\n  {:7}  {:width$}  -> {remedy}", "", "");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_has_its_line_in_its_section() {
        let findings = [
            Finding::ok(Section::Rdma, "library", "there"),
            Finding::new(Mark::Problem, Section::Host, "b", "none").with_remedy("get one"),
        ];
        let expected = "this host\n  PROBLEM  b        none\n                    -> get one\n\n\
                        RDMA\n  ok       library  there";
        assert_eq!(in_words(&findings), expected);
    }
}
