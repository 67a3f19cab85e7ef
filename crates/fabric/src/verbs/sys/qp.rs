//! Queue pairs.

use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rdma_mummy_sys as ffi;
use rdma_mummy_sys::{ibv_access_flags as access, ibv_qp_attr_mask as mask};

use super::{Chain, Cq, Pd, Receive, check, found};
use crate::limits::{HOP_LIMIT, MIN_RNR_TIMER, RETRY_COUNT, RNR_RETRY_COUNT, TIMEOUT_EXPONENT};

/// The transport of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum Kind {
    Rc,
    Uc,
    Ud,
}

/// The room of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Caps {
    pub send: u32,
    pub receive: u32,
    pub inline_bytes: u32,
}

/// The way from a port to another.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Route {
    /// The port that packets leave from, and the index of its GID.
    pub port: u8,
    pub gid_index: u8,
    /// The other port.
    pub gid: [u8; 16],
    pub lid: u16,
    /// Packets name GIDs: always on RoCE, and between the subnets of InfiniBand.
    pub is_global: bool,
}

impl Route {
    pub(super) fn attr(&self) -> ffi::ibv_ah_attr {
        ffi::ibv_ah_attr {
            grh: ffi::ibv_global_route {
                dgid: ffi::ibv_gid { raw: self.gid },
                flow_label: 0,
                sgid_index: self.gid_index,
                hop_limit: HOP_LIMIT,
                traffic_class: 0,
            },
            dlid: self.lid,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            is_global: u8::from(self.is_global),
            port_num: self.port,
        }
    }
}

/// The agreement of two connected ends, seen from one of them.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Path {
    pub route: Route,
    /// The other end's queue pair, and its first packet's number.
    pub qp_number: u32,
    pub psn: u32,
    /// This end's first packet's number.
    pub own_psn: u32,
    pub mtu_bytes: u32,
    /// READs and atomics under way at a time.
    pub rd_atomic: u8,
}

/// The rights of a peer through a queue pair; its keys say to which bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::verbs) struct Allowed {
    pub read: bool,
    pub write: bool,
    pub atomic: bool,
}

/// A queue pair. Dropping it stops it: the card executes no further verb of the peer, and sends
/// nothing. It may still finish a read of memory that it had begun.
pub(in crate::verbs) struct Qp {
    raw: NonNull<ffi::ibv_qp>,
    kind: Kind,
    _send_cq: Arc<Cq>,
    _receive_cq: Arc<Cq>,
    pd: Arc<Pd>,
}

// SAFETY: a queue pair belongs to the process, and rdma-core's functions take it from any thread.
unsafe impl Send for Qp {}
// SAFETY: as for Send: posting locks the queue.
unsafe impl Sync for Qp {}

impl Qp {
    /// A queue pair in its first state, and the room that it got, which is never less than wanted.
    pub fn new(
        pd: &Arc<Pd>,
        kind: Kind,
        send_cq: &Arc<Cq>,
        receive_cq: &Arc<Cq>,
        wanted: Caps,
    ) -> io::Result<(Self, Caps)> {
        let mut init = ffi::ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: send_cq.raw.as_ptr(),
            recv_cq: receive_cq.raw.as_ptr(),
            srq: null_mut(),
            cap: ffi::ibv_qp_cap {
                max_send_wr: wanted.send,
                max_recv_wr: wanted.receive,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: wanted.inline_bytes,
            },
            qp_type: match kind {
                Kind::Rc => ffi::ibv_qp_type::IBV_QPT_RC,
                Kind::Uc => ffi::ibv_qp_type::IBV_QPT_UC,
                Kind::Ud => ffi::ibv_qp_type::IBV_QPT_UD,
            },
            sq_sig_all: 0,
        };
        // SAFETY: the domain and the queues exist (invariant 1 of their types), and `init` lives
        // through the call, which writes to it what was granted.
        let raw = found(unsafe { ffi::ibv_create_qp(pd.raw.as_ptr(), &mut init) })?;
        let (_send_cq, _receive_cq) = (send_cq.clone(), receive_cq.clone());
        let got = Caps {
            send: init.cap.max_send_wr,
            receive: init.cap.max_recv_wr,
            inline_bytes: init.cap.max_inline_data,
        };
        Ok((Self { raw, kind, _send_cq, _receive_cq, pd: pd.clone() }, got))
    }

    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair exists (invariant 1), and its number does not change.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    fn modify(&self, attr: &mut ffi::ibv_qp_attr, what: mask) -> io::Result<()> {
        // SAFETY: the queue pair exists (invariant 1), and `attr` lives through the call.
        check(unsafe { ffi::ibv_modify_qp(self.raw.as_ptr(), attr, what.0 as i32) })
    }

    fn initialise(&self, port: u8, qkey: Option<u32>, allowed: Allowed) -> io::Result<()> {
        let mut attr = no_attr(ffi::ibv_qp_state::IBV_QPS_INIT);
        attr.port_num = port;
        let mut what = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT;
        if let Some(qkey) = qkey {
            attr.qkey = qkey;
            what |= mask::IBV_QP_QKEY;
        } else {
            let flag = |is_set, flag: access| if is_set { flag.0 } else { 0 };
            attr.qp_access_flags = flag(allowed.read, access::IBV_ACCESS_REMOTE_READ)
                | flag(allowed.write, access::IBV_ACCESS_REMOTE_WRITE)
                | flag(allowed.atomic, access::IBV_ACCESS_REMOTE_ATOMIC);
            what |= mask::IBV_QP_ACCESS_FLAGS;
        }
        self.modify(&mut attr, what)
    }

    /// Connects a new RC or UC queue pair: from then on it serves its peer, and sends.
    pub fn connect(&self, path: &Path, allowed: Allowed) -> io::Result<()> {
        assert!(self.kind != Kind::Ud, "datagrams have no connection");
        let is_reliable = self.kind == Kind::Rc;
        self.initialise(path.route.port, None, allowed)?;
        let mut attr = no_attr(ffi::ibv_qp_state::IBV_QPS_RTR);
        attr.path_mtu = mtu_code(path.mtu_bytes);
        attr.dest_qp_num = path.qp_number;
        attr.rq_psn = path.psn;
        attr.ah_attr = path.route.attr();
        attr.max_dest_rd_atomic = path.rd_atomic;
        attr.min_rnr_timer = MIN_RNR_TIMER;
        let what = mask::IBV_QP_STATE | mask::IBV_QP_AV | mask::IBV_QP_PATH_MTU;
        let mut what = what | mask::IBV_QP_DEST_QPN | mask::IBV_QP_RQ_PSN;
        if is_reliable {
            what |= mask::IBV_QP_MAX_DEST_RD_ATOMIC | mask::IBV_QP_MIN_RNR_TIMER;
        }
        self.modify(&mut attr, what)?;
        let mut attr = no_attr(ffi::ibv_qp_state::IBV_QPS_RTS);
        attr.sq_psn = path.own_psn;
        attr.timeout = TIMEOUT_EXPONENT;
        attr.retry_cnt = RETRY_COUNT;
        attr.rnr_retry = RNR_RETRY_COUNT;
        attr.max_rd_atomic = path.rd_atomic;
        let mut what = mask::IBV_QP_STATE | mask::IBV_QP_SQ_PSN;
        if is_reliable {
            what |= mask::IBV_QP_TIMEOUT | mask::IBV_QP_RETRY_CNT;
            what |= mask::IBV_QP_RNR_RETRY | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        }
        self.modify(&mut attr, what)
    }

    /// Resets a queue pair to its first state, with the same number. Its posted requests are
    /// forgotten, and have no completions.
    pub fn reset(&self) -> io::Result<()> {
        self.modify(&mut no_attr(ffi::ibv_qp_state::IBV_QPS_RESET), mask::IBV_QP_STATE)
    }

    /// Makes a new UD queue pair ready.
    pub fn open(&self, port: u8, qkey: u32, psn: u32) -> io::Result<()> {
        assert!(self.kind == Kind::Ud, "the others are connected");
        self.initialise(port, Some(qkey), Allowed::default())?;
        let mut attr = no_attr(ffi::ibv_qp_state::IBV_QPS_RTR);
        self.modify(&mut attr, mask::IBV_QP_STATE)?;
        let mut attr = no_attr(ffi::ibv_qp_state::IBV_QPS_RTS);
        attr.sq_psn = psn;
        self.modify(&mut attr, mask::IBV_QP_STATE | mask::IBV_QP_SQ_PSN)
    }

    /// Stops the queue pair: requests that are posted, now or later, are flushed.
    pub fn stop(&self) -> io::Result<()> {
        self.modify(&mut no_attr(ffi::ibv_qp_state::IBV_QPS_ERR), mask::IBV_QP_STATE)
    }

    /// Posts a chain with one doorbell. If not all requests could be posted, the error says how
    /// many were.
    ///
    /// # Safety
    /// The local memory of every request that is not inline must be registered, stay so,
    /// and be left alone until the completion of the request, or of a later request of this queue
    /// pair, was polled. The local memory of inline requests must be readable now.
    pub unsafe fn post(&self, chain: &mut Chain) -> Result<(), usize> {
        let first = chain.link();
        let mut bad = null_mut();
        // SAFETY: the queue pair exists (invariant 1), every provider has this function, and the
        // list ends and lives through the call. By this function's contract the card may use the
        // memory that it names.
        let code = unsafe { ffi::ibv_post_send(self.raw.as_ptr(), first, &mut bad) };
        if code == 0 { Ok(()) } else { Err(chain.index_of(bad)) }
    }

    /// Posts a buffer for a datagram.
    ///
    /// # Safety
    /// The memory must be registered, stay so, and be left alone until its completion was polled.
    pub unsafe fn post_receive(&self, receive: &Receive) -> io::Result<()> {
        let local = receive.local;
        let mut sge =
            ffi::ibv_sge { addr: local.start as u64, length: local.len, lkey: local.lkey };
        let mut request =
            ffi::ibv_recv_wr { wr_id: receive.id, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: the queue pair exists (invariant 1), every provider has this function, and the
        // request lives through the call. By this function's contract the card may write the
        // memory.
        check(unsafe { ffi::ibv_post_recv(self.raw.as_ptr(), &mut request, &mut bad) })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if self.pd.context.is_inherited() {
            return;
        }
        // SAFETY: made in `new` and destroyed here only.
        let code = unsafe { ffi::ibv_destroy_qp(self.raw.as_ptr()) };
        // A peer that is not cut off as intended would continue to write memory that others use.
        assert!(code == 0, "cannot destroy a QP: {}", io::Error::from_raw_os_error(code));
    }
}

fn no_attr(state: ffi::ibv_qp_state::Type) -> ffi::ibv_qp_attr {
    // SAFETY: the struct is integers, and unions of bytes and integers, for which zero is a value.
    let mut attr: ffi::ibv_qp_attr = unsafe { std::mem::zeroed() };
    attr.qp_state = state;
    attr
}

/// rdma-core's number for a packet size.
fn mtu_code(mtu_bytes: u32) -> ffi::ibv_mtu::Type {
    assert!(mtu_bytes.is_power_of_two() && (256..=4096).contains(&mtu_bytes), "it was validated");
    mtu_bytes.trailing_zeros() - 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_sizes_have_their_numbers() {
        use ffi::ibv_mtu::*;
        let all = [256, 512, 1024, 2048, 4096].map(mtu_code);
        let expected = [IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096];
        assert_eq!(all, expected);
    }
}
