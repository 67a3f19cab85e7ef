//! Work requests, and the completions that answer them.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

use rdma_mummy_sys as ffi;
use rdma_mummy_sys::{ibv_send_flags as flags, ibv_wc_status as status, ibv_wr_opcode as opcode};

use super::Ah;

/// The most work requests that are posted with one doorbell.
pub(in crate::verbs) const CHAIN_MAX: usize = 16;

/// Local memory of a work request.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Local {
    pub start: *mut u8,
    pub len: u32,
    pub lkey: u32,
}

pub(in crate::verbs) use crate::away::keys::Remote;

/// The work of a work request.
pub(in crate::verbs) enum Verb<'a> {
    Read(Remote),
    Write(Remote),
    CompareSwap {
        at: Remote,
        expect: u64,
        new: u64,
    },
    FetchAdd {
        at: Remote,
        add: u64,
    },
    /// `immediate` arrives beside the bytes.
    Send {
        to: &'a Ah,
        qp_number: u32,
        qkey: u32,
        immediate: u32,
    },
}

/// A work request.
pub(in crate::verbs) struct Request<'a> {
    /// Comes back with the completion.
    pub id: u64,
    pub verb: Verb<'a>,
    /// `None` for a verb that moves no bytes.
    pub local: Option<Local>,
    /// The bytes are copied when the request is posted, and the memory is free again afterwards.
    pub inline: bool,
    /// A completion is wanted even if all goes well.
    pub signaled: bool,
}

/// Work requests that will be posted together.
pub(in crate::verbs) struct Chain {
    requests: [MaybeUninit<ffi::ibv_send_wr>; CHAIN_MAX],
    locals: [MaybeUninit<ffi::ibv_sge>; CHAIN_MAX],
    len: usize,
}

// SAFETY: the pointers in a chain are followed by `Qp::post` only, whose caller vouches for them.
unsafe impl Send for Chain {}

impl Chain {
    pub fn new() -> Box<Self> {
        let requests = [const { MaybeUninit::uninit() }; CHAIN_MAX];
        let locals = [const { MaybeUninit::uninit() }; CHAIN_MAX];
        Box::new(Self { requests, locals, len: 0 })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_full(&self) -> bool {
        self.len == CHAIN_MAX
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds a request.
    ///
    /// # Panics
    /// If the chain is full.
    pub fn push(&mut self, request: &Request<'_>) {
        // SAFETY: the struct is integers, pointers and unions of those, for which zero is a value.
        let mut wr: ffi::ibv_send_wr = unsafe { std::mem::zeroed() };
        wr.wr_id = request.id;
        if let Verb::Send { immediate, .. } = request.verb {
            wr.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
        }
        if request.signaled {
            wr.send_flags |= flags::IBV_SEND_SIGNALED.0;
        }
        if request.inline {
            wr.send_flags |= flags::IBV_SEND_INLINE.0;
        }
        if let Some(local) = request.local {
            let sge =
                ffi::ibv_sge { addr: local.start as u64, length: local.len, lkey: local.lkey };
            self.locals[self.len].write(sge);
            wr.num_sge = 1;
        }
        (wr.opcode, wr.wr) = encode(&request.verb);
        self.requests[self.len].write(wr);
        self.len += 1;
    }

    /// Links the requests; the first of them, or null if there is none.
    pub(super) fn link(&mut self) -> *mut ffi::ibv_send_wr {
        // Through one pointer to each array, so that the links stay valid next to each other.
        let requests = self.requests.as_mut_ptr().cast::<ffi::ibv_send_wr>();
        let locals = self.locals.as_mut_ptr().cast::<ffi::ibv_sge>();
        for index in 0..self.len {
            // SAFETY: `push` has written all requests below `len`, and `len` is not over the
            // arrays'.
            unsafe {
                let request = &mut *requests.add(index);
                let is_last = index + 1 == self.len;
                request.next = if is_last { null_mut() } else { requests.add(index + 1) };
                request.sg_list = locals.add(index);
            }
        }
        if self.len == 0 { null_mut() } else { requests }
    }

    /// The place of a request in the chain, from a pointer that rdma-core gave back.
    pub(super) fn index_of(&self, request: *const ffi::ibv_send_wr) -> usize {
        let bytes = (request as usize).saturating_sub(self.requests.as_ptr() as usize);
        (bytes / size_of::<ffi::ibv_send_wr>()).min(self.len)
    }
}

fn encode(verb: &Verb<'_>) -> (opcode::Type, ffi::wr_t) {
    let rdma =
        |at: &Remote| ffi::wr_t { rdma: ffi::rdma_t { remote_addr: at.address, rkey: at.rkey } };
    let atomic = |at: &Remote, compare_add, swap| ffi::wr_t {
        atomic: ffi::atomic_t { remote_addr: at.address, compare_add, swap, rkey: at.rkey },
    };
    match verb {
        Verb::Read(at) => (opcode::IBV_WR_RDMA_READ, rdma(at)),
        Verb::Write(at) => (opcode::IBV_WR_RDMA_WRITE, rdma(at)),
        Verb::CompareSwap { at, expect, new } => {
            (opcode::IBV_WR_ATOMIC_CMP_AND_SWP, atomic(at, *expect, *new))
        }
        Verb::FetchAdd { at, add } => (opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, atomic(at, *add, 0)),
        Verb::Send { to, qp_number, qkey, .. } => {
            let ah = to.raw.as_ptr();
            let ud = ffi::ud_t { ah, remote_qpn: *qp_number, remote_qkey: *qkey };
            (opcode::IBV_WR_SEND_WITH_IMM, ffi::wr_t { ud })
        }
    }
}

/// A buffer for a datagram that comes in.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Receive {
    /// Comes back with the completion.
    pub id: u64,
    pub local: Local,
}

/// The outcome of a work request.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(in crate::verbs) struct Completion(ffi::ibv_wc);

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum Status {
    Done,
    /// The queue pair was in its error state, or came into it.
    Flushed,
    /// The peer's card refused: the key does not open these bytes for this verb.
    Denied,
    /// Another error that breaks a connection, by rdma-core's number.
    Broken(u32),
}

impl Completion {
    pub fn none() -> Self {
        // SAFETY: the struct is integers and a union of those, for which zero is a value.
        Self(unsafe { std::mem::zeroed() })
    }

    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    pub fn status(&self) -> Status {
        match self.0.status {
            status::IBV_WC_SUCCESS => Status::Done,
            status::IBV_WC_WR_FLUSH_ERR => Status::Flushed,
            status::IBV_WC_REM_ACCESS_ERR | status::IBV_WC_REM_INV_REQ_ERR => Status::Denied,
            other => Status::Broken(other),
        }
    }

    /// Bytes received, with the 40 of the routing header.
    pub fn bytes_received(&self) -> usize {
        self.0.byte_len as usize
    }

    /// The queue pair that sent a datagram, and its port's LID.
    pub fn source(&self) -> (u32, u16) {
        (self.0.src_qp, self.0.slid)
    }

    /// The immediate data of the bytes received.
    pub fn immediate(&self) -> Option<u32> {
        let has_one = self.0.wc_flags & ffi::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        // SAFETY: both parts of the union are integers of the same size.
        has_one.then(|| u32::from_be(unsafe { self.0.imm_data_invalidated_rkey_union.imm_data }))
    }

    /// Whether the first 40 bytes received are a routing header.
    pub fn has_routing_header(&self) -> bool {
        self.0.wc_flags & ffi::ibv_wc_flags::IBV_WC_GRH.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_links_what_was_pushed() {
        let mut byte = 0u8;
        let mut chain = Chain::new();
        assert!(chain.link().is_null());
        let local = Local { start: &mut byte, len: 1, lkey: 5 };
        for id in 0..CHAIN_MAX as u64 {
            let at = Remote { address: 64 + id, rkey: 9 };
            let (inline, signaled) = (id % 2 == 0, id % 3 == 0);
            let local = (id != 7).then_some(local);
            chain.push(&Request { id, verb: Verb::Write(at), local, inline, signaled });
        }
        assert!(chain.is_full());
        let mut next = chain.link().cast_const();
        for id in 0..CHAIN_MAX as u64 {
            assert_eq!(chain.index_of(next), id as usize);
            // SAFETY: `link` made a list of as many requests as were pushed.
            let request = unsafe { &*next };
            let expected = u32::from(id % 2 == 0) * 8 + u32::from(id % 3 == 0) * 2;
            assert_eq!((request.wr_id, request.send_flags), (id, expected));
            assert_eq!(request.num_sge, i32::from(id != 7));
            // SAFETY: a WRITE has the `rdma` part.
            assert_eq!(unsafe { request.wr.rdma }.remote_addr, 64 + id);
            next = request.next;
        }
        assert!(next.is_null());
        chain.clear();
        assert!(chain.len() == 0 && chain.link().is_null());
    }
}
