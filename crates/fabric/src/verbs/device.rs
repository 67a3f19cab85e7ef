//! Choosing and opening a device, one of its ports, and a GID of the port.

use std::io;
use std::net::Ipv6Addr;
use std::sync::Arc;

use rdma_mummy_sys as ffi;
use serde::{Deserialize, Serialize};

use crate::limits::{
    COMPLETIONS_MAX, GID_ENTRIES_MAX, INLINE_BYTES_WANTED, RD_ATOMIC_MAX, SEND_QUEUE_WRS,
};

use super::DeviceError;
use super::setup::{Offer, QueueAddress, Transport};
use super::sys::{Caps, Context, Cq, DeviceList, Kind, Path, Pd, Qp, Route};

/// Which device, port and GID to use. A field that is `None` is chosen automatically: the first
/// device and port that carry Loch; among GIDs, RoCE version 2 over IPv4 before IPv6, before
/// link-local addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// The device's name, as `rdma link` shows it: `mlx5_0`, `rxe0`.
    pub device: Option<String>,
    /// The port's number, from 1.
    pub port: Option<u8>,
    /// The index of the GID, as `/sys/class/infiniband/DEVICE/ports/PORT/gids` names it.
    pub gid_index: Option<u8>,
}

/// The kind of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GidKind {
    /// A port of an InfiniBand network.
    InfiniBand,
    /// RoCE version 1: Ethernet frames, not routed.
    RoceV1,
    /// RoCE version 2: UDP.
    RoceV2,
}

/// A device, one port and one GID of it; a fact for logs and reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// The device's name.
    pub device: String,
    /// The port's number.
    pub port: u8,
    /// The GID's index.
    pub gid_index: u8,
    /// The GID, written as an IPv6 address.
    pub gid: Ipv6Addr,
    /// The kind of the GID.
    pub kind: GidKind,
    /// The port's LID; 0 on RoCE.
    pub lid: u16,
    /// Bytes of the largest packet of the port.
    pub mtu_bytes: u32,
    /// Whether the device does CAS and FAA.
    pub has_atomics: bool,
    /// READs and atomics that one connection may send at a time.
    pub rd_atomic_sent: u8,
    /// READs and atomics that one connection may serve at a time.
    pub rd_atomic_served: u8,
    /// Bytes that a work request may carry inline. 0 if this was not tried out.
    pub inline_bytes: u32,
    /// Work requests of a queue.
    pub queue_wrs: u32,
    /// Completions of a queue.
    pub completions: u32,
}

/// A device, port and GID that were looked at, usable or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Surveyed {
    /// The device's name.
    pub device: String,
    /// The port's number; `None` if the survey did not get that far.
    pub port: Option<u8>,
    /// Its properties; `None` if the survey did not get that far.
    pub info: Option<DeviceInfo>,
    /// Why it cannot be used; `None` if it can.
    pub unusable: Option<String>,
}

/// An opened device, with one of its ports and a GID: a process needs one. Any thread may use it.
pub struct Device {
    pub(super) context: Arc<Context>,
    /// The protection domain of this process's active ends.
    pub(super) pd: Arc<Pd>,
    info: DeviceInfo,
}

impl Device {
    /// Opens the device, port and GID that `selection` names.
    ///
    /// # Errors
    /// [`DeviceError::NoneUsable`] says for every device, port and GID why it was passed over;
    /// [`DeviceError::Library`] or [`DeviceError::Kernel`] if this host cannot have a device.
    pub fn open(selection: &Selection) -> Result<Arc<Device>, DeviceError> {
        let list = DeviceList::new()?;
        let mut passed_over = Vec::new();
        for index in 0..list.len() {
            let name = list.name(index);
            if let Some(wanted) = selection.device.as_ref().filter(|wanted| **wanted != name) {
                passed_over.push(format!("{name}: device {wanted:?} was asked for"));
                continue;
            }
            let opened = match list.open(index) {
                Ok(context) => context,
                Err(error) => {
                    passed_over.push(format!("{name}: cannot be opened: {error}"));
                    continue;
                }
            };
            match choose(look_at(&opened, &name), selection, &mut passed_over) {
                Some(info) => return Self::with(opened, info).map(Arc::new),
                None => continue,
            }
        }
        Err(DeviceError::NoneUsable { passed_over })
    }

    fn with(context: Arc<Context>, mut info: DeviceInfo) -> Result<Self, DeviceError> {
        let device = info.device.clone();
        let failed = |action| move |source| DeviceError::Os { action, device, source };
        let pd = Pd::new(&context).map_err(failed.clone()("allocate a protection domain on"))?;
        info.inline_bytes = inline_bytes(&context, &pd).map_err(failed("try a QP on"))?;
        Ok(Self { context, pd, info })
    }

    /// The properties of the opened device.
    pub fn describe(&self) -> DeviceInfo {
        self.info.clone()
    }

    pub(super) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The address of a queue pair of this device.
    pub(super) fn address(&self, qp: &Qp, psn: u32) -> QueueAddress {
        let gid = self.info.gid.octets();
        QueueAddress { gid, lid: self.info.lid, qp_number: qp.number(), psn }
    }

    /// The way to a port.
    pub(super) fn route(&self, gid: [u8; 16], lid: u16) -> Route {
        let is_roce = self.info.kind != GidKind::InfiniBand;
        // The first half of a GID names its subnet.
        let is_elsewhere = gid[..8] != self.info.gid.octets()[..8];
        Route {
            port: self.info.port,
            gid_index: self.info.gid_index,
            gid,
            lid,
            is_global: is_roce || is_elsewhere || lid == 0,
        }
    }

    /// The way to a queue pair.
    pub(super) fn path(&self, to: &QueueAddress, own_psn: u32, agreed: (u32, u8)) -> Path {
        Path {
            route: self.route(to.gid, to.lid),
            qp_number: to.qp_number,
            psn: to.psn,
            own_psn,
            mtu_bytes: agreed.0,
            rd_atomic: agreed.1,
        }
    }

    /// The offer of this end.
    pub(super) fn offer(&self, qp: &Qp, psn: u32, transport: Transport) -> Offer {
        Offer {
            transport,
            from: self.address(qp, psn),
            mtu_bytes: self.info.mtu_bytes,
            rd_atomic: self.info.rd_atomic_sent.min(RD_ATOMIC_MAX),
        }
    }

    /// The lesser values of both ends: bytes of a packet; READs and atomics at a time.
    pub(super) fn agree(&self, offer: &Offer) -> (u32, u8) {
        let rd_atomic = offer.rd_atomic.min(self.info.rd_atomic_served).min(RD_ATOMIC_MAX);
        (self.info.mtu_bytes.min(offer.mtu_bytes), rd_atomic.max(1))
    }
}

/// Looks at every device, port and GID of this host.
///
/// # Errors
/// [`DeviceError::Library`] or [`DeviceError::Kernel`] if this host cannot have a device.
pub fn survey() -> Result<Vec<Surveyed>, DeviceError> {
    let list = DeviceList::new()?;
    let mut all = Vec::new();
    for index in 0..list.len() {
        let name = list.name(index);
        match list.open(index) {
            Ok(context) => all.extend(look_at(&context, &name)),
            Err(error) => all.push(without_info(&name, None, format!("cannot be opened: {error}"))),
        }
    }
    Ok(all)
}

fn without_info(device: &str, port: Option<u8>, unusable: String) -> Surveyed {
    Surveyed { device: device.to_owned(), port, info: None, unusable: Some(unusable) }
}

/// Every port and GID of a device.
fn look_at(context: &Context, name: &str) -> Vec<Surveyed> {
    let attr = match context.query_device() {
        Ok(attr) => attr,
        Err(error) => return vec![without_info(name, None, format!("does not answer: {error}"))],
    };
    let mut all = Vec::new();
    for port in 1..=attr.phys_port_cnt {
        let found = look_at_port(context, name, &attr, port);
        match found {
            Ok(found) if found.is_empty() => {
                all.push(without_info(name, Some(port), "the port has no GID".to_owned()));
            }
            Ok(found) => all.extend(found),
            Err(error) => {
                all.push(without_info(name, Some(port), format!("does not answer: {error}")));
            }
        }
    }
    all
}

fn look_at_port(
    context: &Context,
    name: &str,
    attr: &ffi::ibv_device_attr,
    port: u8,
) -> io::Result<Vec<Surveyed>> {
    let port_attr = context.query_port(port)?;
    let entries = port_attr.gid_tbl_len.clamp(0, GID_ENTRIES_MAX) as u8;
    let entry = |index| context.query_gid(port, index).map(|(gid, kind)| (index, gid, kind));
    let found = (0..entries).filter_map(entry).filter(|(_, gid, _)| *gid != [0; 16]);
    let surveyed = found.map(|(gid_index, gid, gid_type)| {
        let small = |value: i32| value.clamp(0, i32::from(u8::MAX)) as u8;
        let info = DeviceInfo {
            device: name.to_owned(),
            port,
            gid_index,
            gid: Ipv6Addr::from(gid),
            kind: match gid_type {
                ffi::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
                ffi::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
                _ => GidKind::InfiniBand,
            },
            lid: port_attr.lid,
            mtu_bytes: 128 << port_attr.active_mtu.clamp(1, 5),
            has_atomics: attr.atomic_cap != ffi::ibv_atomic_cap::IBV_ATOMIC_NONE,
            rd_atomic_sent: small(attr.max_qp_init_rd_atom),
            rd_atomic_served: small(attr.max_qp_rd_atom),
            inline_bytes: 0,
            queue_wrs: attr.max_qp_wr.max(0) as u32,
            completions: attr.max_cqe.max(0) as u32,
        };
        let unusable = unusable(&info, port_attr.state);
        Surveyed { device: name.to_owned(), port: Some(port), info: Some(info), unusable }
    });
    Ok(surveyed.collect())
}

fn unusable(info: &DeviceInfo, state: ffi::ibv_port_state::Type) -> Option<String> {
    if state != ffi::ibv_port_state::IBV_PORT_ACTIVE {
        return Some("the port is not active: is the link up?".to_owned());
    }
    if !info.has_atomics || info.rd_atomic_sent == 0 || info.rd_atomic_served == 0 {
        return Some("the device does no READs and atomics".to_owned());
    }
    if info.queue_wrs < SEND_QUEUE_WRS || info.completions < COMPLETIONS_MAX {
        return Some("the device's queues are too short".to_owned());
    }
    None
}

/// The best candidate that fits, and for all others the reason why they do not.
fn choose(
    found: Vec<Surveyed>,
    selection: &Selection,
    passed_over: &mut Vec<String>,
) -> Option<DeviceInfo> {
    let mut best: Option<DeviceInfo> = None;
    for one in found {
        let mut name = one.device.clone();
        if let Some(port) = one.port {
            name += &format!(" port {port}");
        }
        if let Some(info) = &one.info {
            name += &format!(" GID {} ({})", info.gid_index, info.gid);
        }
        let index = one.info.as_ref().map(|info| info.gid_index);
        let port = selection.port.filter(|wanted| one.port != Some(*wanted));
        let gid = selection.gid_index.filter(|wanted| index != Some(*wanted));
        match (one.unusable, port, gid, one.info) {
            (Some(why), ..) => passed_over.push(format!("{name}: {why}")),
            (_, Some(port), ..) => passed_over.push(format!("{name}: port {port} was asked for")),
            (_, _, Some(gid), _) => passed_over.push(format!("{name}: GID {gid} was asked for")),
            (.., Some(info)) if best.as_ref().is_none_or(|best| rank(&info) > rank(best)) => {
                best = Some(info);
            }
            _ => (),
        }
    }
    best
}

/// How good a GID is: routed GIDs before others, and IPv4, which an administrator usually
/// configures, before IPv6, which is often there without configuration.
fn rank(info: &DeviceInfo) -> u8 {
    let is_link_local = info.gid.is_unicast_link_local();
    match info.kind {
        GidKind::RoceV2 if info.gid.to_ipv4_mapped().is_some() => 5,
        GidKind::RoceV2 if !is_link_local => 4,
        GidKind::InfiniBand => 3,
        GidKind::RoceV2 => 2,
        GidKind::RoceV1 => 1,
    }
}

/// Bytes that a work request may carry inline: no attribute says it, so queue pairs are tried.
fn inline_bytes(context: &Arc<Context>, pd: &Arc<Pd>) -> io::Result<u32> {
    let cq = Cq::new(context, 1)?;
    let mut inline_bytes = INLINE_BYTES_WANTED;
    loop {
        let wanted = Caps { send: SEND_QUEUE_WRS, receive: 1, inline_bytes };
        match Qp::new(pd, Kind::Rc, &cq, &cq, wanted) {
            Ok((_, got)) => return Ok(got.inline_bytes),
            Err(error) if inline_bytes == 0 => return Err(error),
            Err(_) => inline_bytes = if inline_bytes > 32 { inline_bytes / 2 } else { 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(gid_index: u8, gid: &str, kind: GidKind) -> Surveyed {
        let info = DeviceInfo {
            device: "rxe0".to_owned(),
            port: 1,
            gid_index,
            gid: gid.parse().expect("it is an address"),
            kind,
            lid: 0,
            mtu_bytes: 1024,
            has_atomics: true,
            rd_atomic_sent: 16,
            rd_atomic_served: 16,
            inline_bytes: 0,
            queue_wrs: 1 << 14,
            completions: 1 << 15,
        };
        let (device, port, info) = ("rxe0".to_owned(), Some(1), Some(info));
        Surveyed { device, port, info, unusable: None }
    }

    fn table() -> Vec<Surveyed> {
        vec![
            found(0, "fe80::1", GidKind::RoceV1),
            found(1, "fe80::1", GidKind::RoceV2),
            found(2, "::ffff:10.9.0.1", GidKind::RoceV2),
            found(3, "2001:db8::1", GidKind::RoceV2),
        ]
    }

    fn chosen(selection: &Selection) -> Result<u8, String> {
        let mut passed_over = Vec::new();
        let best = choose(table(), selection, &mut passed_over);
        best.map(|info| info.gid_index).ok_or(passed_over.join("; "))
    }

    #[test]
    fn the_routed_gid_is_chosen_or_the_one_asked_for() {
        assert_eq!(chosen(&Selection::default()), Ok(2));
        let of = |gid_index| Selection { gid_index: Some(gid_index), ..Selection::default() };
        assert_eq!((chosen(&of(0)), chosen(&of(3))), (Ok(0), Ok(3)));
    }

    #[test]
    fn it_is_said_why_each_was_passed_over() {
        let why = chosen(&Selection { gid_index: Some(9), ..Selection::default() });
        let why = why.expect_err("there is none");
        assert_eq!(why.matches("GID 9 was asked for").count(), 4, "{why}");
        let why = chosen(&Selection { port: Some(2), ..Selection::default() });
        assert!(why.expect_err("there is none").contains("port 2 was asked for"));
        let mut down = found(0, "fe80::1", GidKind::RoceV2);
        let info = down.info.as_mut().expect("it has one");
        down.unusable = unusable(info, ffi::ibv_port_state::IBV_PORT_DOWN);
        let mut passed_over = Vec::new();
        assert_eq!(choose(vec![down], &Selection::default(), &mut passed_over), None);
        assert!(passed_over[0].contains("not active"), "{passed_over:?}");
    }

    #[test]
    fn a_device_that_lacks_something_is_not_used() {
        let active = ffi::ibv_port_state::IBV_PORT_ACTIVE;
        let info = table().remove(0).info.expect("it has one");
        assert_eq!(unusable(&info, active), None);
        let spoil: [fn(&mut DeviceInfo); 4] = [
            |i| i.has_atomics = false,
            |i| i.rd_atomic_sent = 0,
            |i| i.queue_wrs = 1,
            |i| i.completions = 16,
        ];
        for spoil in spoil {
            let mut info = info.clone();
            spoil(&mut info);
            assert!(unusable(&info, active).is_some());
        }
    }

    /// This holds on every machine: there is a device, or an error that says why not.
    #[test]
    fn opening_a_device_never_crashes() {
        match Device::open(&Selection::default()) {
            Ok(device) => assert!(device.describe().mtu_bytes >= 256),
            Err(error) => assert!(error.to_string().len() > 20, "{error}"),
        }
        let nobody = Selection { device: Some("nobody0".to_owned()), ..Selection::default() };
        assert!(Device::open(&nobody).is_err());
        drop(survey());
    }
}
