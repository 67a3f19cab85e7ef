//! The device that automatic selection takes, or the requested one, and the reasons why others are
//! passed over.

use std::net::Ipv6Addr;
use std::sync::Arc;

use loch_fabric::verbs::{Device, DeviceError, DeviceInfo, GidKind, Selection, Surveyed, survey};

use super::Wanted;
use super::finding::{Finding, Mark, Section};
use super::self_test::watched;

/// The devices that verbs programs of this host find.
pub struct Card {
    surveyed: Vec<Surveyed>,
    opened: Result<Arc<Device>, String>,
}

impl Card {
    /// Looks at every device, and opens one.
    pub fn look(selection: Selection) -> Self {
        let looked = watched("opening RDMA devices", move || {
            let surveyed = survey()?;
            // If no device was opened, the survey has the reasons.
            Ok((surveyed, Device::open(&selection).map_err(|error| error.to_string())))
        });
        let failed = |why| Self { surveyed: Vec::new(), opened: Err(why) };
        match looked {
            Ok(Ok((surveyed, opened))) => Self { surveyed, opened },
            Ok(Err(error)) => failed(DeviceError::to_string(&error)),
            Err(why) => failed(why),
        }
    }

    /// The opened device.
    pub fn device(&self) -> Option<&Arc<Device>> {
        self.opened.as_ref().ok()
    }

    /// The chosen device, and the others.
    pub fn findings(&self, wanted: Wanted) -> Vec<Finding> {
        let chosen = match &self.opened {
            Ok(device) => return self.chosen(&device.describe()),
            Err(why) => why.as_str(),
        };
        let missing = wanted.mark_of_missing_rdma();
        let finding = Finding::new(missing, Section::Rdma, "chosen", chosen)
            .with_remedy("see the lines above; or ask for another --device, --port or --gid-index");
        vec![finding]
    }

    fn chosen(&self, info: &DeviceInfo) -> Vec<Finding> {
        let mut findings = vec![
            Finding::ok(Section::Rdma, "chosen", place(info)),
            Finding::ok(Section::Rdma, "limits", limits(info)),
        ];
        for other in &self.surveyed {
            let is_it = other.info.as_ref().is_some_and(|one| one.gid == info.gid)
                && other.info.as_ref().is_some_and(|one| place(one) == place(info));
            if !is_it {
                findings.push(passed_over(other));
            }
        }
        findings
    }
}

fn passed_over(other: &Surveyed) -> Finding {
    let port = other.port.map_or(String::new(), |port| format!(" port {port}"));
    let name = other.info.as_ref().map_or(format!("{}{port}", other.device), place);
    let why = match (&other.unusable, &other.info) {
        (Some(why), _) => why.as_str(),
        (None, Some(info)) => would_do(info),
        (None, None) => "was not looked at",
    };
    Finding::new(Mark::Note, Section::Rdma, "passed over", format!("{name}: {why}"))
}

/// Why a usable device was not chosen.
fn would_do(info: &DeviceInfo) -> &'static str {
    match info.kind {
        GidKind::RoceV1 => "RoCE version 1 is not routed; another was chosen",
        GidKind::RoceV2 if info.gid.is_unicast_link_local() => {
            "a link-local address is not routed; another was chosen"
        }
        _ => "would do too; another was chosen",
    }
}

fn place(info: &DeviceInfo) -> String {
    let DeviceInfo { device, port, gid_index, gid, .. } = info;
    format!("{device} port {port} GID {gid_index} ({}, {})", address(*gid), kind(info.kind))
}

fn address(gid: Ipv6Addr) -> String {
    gid.to_ipv4_mapped().map_or(gid.to_string(), |v4| v4.to_string())
}

fn kind(kind: GidKind) -> &'static str {
    match kind {
        GidKind::InfiniBand => "InfiniBand",
        GidKind::RoceV1 => "RoCE v1",
        GidKind::RoceV2 => "RoCE v2",
    }
}

fn limits(info: &DeviceInfo) -> String {
    format!(
        "MTU {} B, {} READs and atomics out and {} in at a time, {} B inline, queues of {}, {}",
        info.mtu_bytes,
        info.rd_atomic_sent,
        info.rd_atomic_served,
        info.inline_bytes,
        info.queue_wrs,
        if info.has_atomics { "CAS and FAA by the card" } else { "no atomics" },
    )
}
