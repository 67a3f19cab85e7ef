//! rdma-core's objects, owned: each is freed once, and after all objects that were made from it.
//!
//! rdma-core is opened at run time ([`library`]), and that module has checked that the functions
//! called here exist. Any thread may call them at any time (rdma-core has locks of its own, as the
//! manual of `libibverbs` says); the `Send` and `Sync` below rest on this.
//!
//! # Invariants
//! 1. A pointer in an object here is what rdma-core returned for it, not null, and is freed by its
//!    `Drop` only.
//! 2. An object holds the objects it was made from, so they are freed after it: QP before CQ and
//!    PD, MR before PD and before the memory that it covers, all before the context.
//! 3. A process that was forked frees nothing: it has the parent's file descriptor, by which it
//!    would take the parent's objects from the card.

pub(super) mod library;
mod list;
mod qp;
mod work;

use std::ffi::c_void;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_mummy_sys as ffi;

use crate::ForkMark;

pub(super) use list::DeviceList;
pub(super) use qp::{Allowed, Caps, Kind, Path, Qp, Route};
pub(super) use work::{CHAIN_MAX, Chain, Completion, Local, Receive, Request, Status, Verb};

/// An opened device.
pub(super) struct Context {
    raw: NonNull<ffi::ibv_context>,
    /// Invariant 3.
    mark: ForkMark,
}

// SAFETY: a context belongs to the process, and rdma-core's functions take it from any thread.
unsafe impl Send for Context {}
// SAFETY: as for Send: rdma-core locks what threads share in it.
unsafe impl Sync for Context {}

impl Context {
    /// Whether this process was forked from the process that opened the device.
    fn is_inherited(&self) -> bool {
        self.mark.is_inherited()
    }

    pub fn query_device(&self) -> io::Result<ffi::ibv_device_attr> {
        // SAFETY: the struct is plain integers, for which zero is a value.
        let mut attr: ffi::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open (invariant 1), and `attr` is room for the answer.
        check(unsafe { ffi::ibv_query_device(self.raw.as_ptr(), &mut attr) })?;
        Ok(attr)
    }

    pub fn query_port(&self, port: u8) -> io::Result<ffi::ibv_port_attr> {
        // SAFETY: the struct is plain integers, for which zero is a value.
        let mut attr: ffi::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open (invariant 1), and `attr` is room for the answer; older
        // libraries are told its size or fill less of it.
        check(unsafe { ffi::ibv_query_port(self.raw.as_ptr(), port, &mut attr) })?;
        Ok(attr)
    }

    /// The entry of a GID table, if there is one at that index: the GID, and its type.
    pub fn query_gid(&self, port: u8, index: u8) -> Option<([u8; 16], u32)> {
        // SAFETY: the struct is plain integers and bytes, for which zero is a value.
        let mut entry: ffi::ibv_gid_entry = unsafe { std::mem::zeroed() };
        let (port, index) = (u32::from(port), u32::from(index));
        // SAFETY: the context is open (invariant 1), and `entry` is room for the answer.
        let code = unsafe { ffi::ibv_query_gid_ex(self.raw.as_ptr(), port, index, &mut entry, 0) };
        // SAFETY: both views of a GID are sixteen bytes of any value, and it was zeroed at least.
        let gid = unsafe { entry.gid.raw };
        (code == 0).then_some((gid, entry.gid_type))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        // SAFETY: opened by `DeviceList::open` and not closed before (invariant 1); what was made
        // of it holds it, so that is gone (invariant 2).
        unsafe { ffi::ibv_close_device(self.raw.as_ptr()) };
    }
}

/// A protection domain: queue pairs of one use keys of the same one only.
pub(super) struct Pd {
    raw: NonNull<ffi::ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: a domain belongs to the process, and rdma-core's functions take it from any thread.
unsafe impl Send for Pd {}
// SAFETY: as for Send: rdma-core locks what threads share in it.
unsafe impl Sync for Pd {}

impl Pd {
    pub fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open (`Context`, invariant 1).
        let raw = found(unsafe { ffi::ibv_alloc_pd(context.raw.as_ptr()) })?;
        Ok(Arc::new(Self { raw, context: context.clone() }))
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        if self.context.is_inherited() {
            return;
        }
        // SAFETY: allocated in `new` and freed here only; all that was made of it held it and is
        // gone (invariant 2).
        let code = unsafe { ffi::ibv_dealloc_pd(self.raw.as_ptr()) };
        tell(code, "free a protection domain");
    }
}

/// The rights that a registration gives to the holders of its key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Registration {
    /// This process's queue pairs read and write it; no peer can.
    Local,
    /// Peers READ it.
    Read,
    /// Peers READ it and do atomics. InfiniBand asks that the card may write it then, but a WRITE
    /// from a peer has a right of its own, which this does not have.
    ReadAtomic,
    /// Peers do all of that, and WRITE.
    Full,
}

impl Registration {
    fn flags(self) -> ffi::ibv_access_flags {
        use ffi::ibv_access_flags as flags;
        let read = flags::IBV_ACCESS_REMOTE_READ;
        let atomic = read | flags::IBV_ACCESS_LOCAL_WRITE | flags::IBV_ACCESS_REMOTE_ATOMIC;
        // Never RELAXED_ORDERING: a completion must not overtake the bytes it tells of.
        match self {
            Registration::Local => flags::IBV_ACCESS_LOCAL_WRITE,
            Registration::Read => read,
            Registration::ReadAtomic => atomic,
            Registration::Full => atomic | flags::IBV_ACCESS_REMOTE_WRITE,
        }
    }
}

/// Registered memory. When this is dropped, no card reaches the memory any more: deregistration
/// returns after the card has forgotten its pages.
pub(super) struct Mr<M> {
    raw: NonNull<ffi::ibv_mr>,
    pd: Arc<Pd>,
    /// Dropped after the registration, as `Drop::drop` runs before fields are.
    memory: M,
}

// SAFETY: a registration belongs to the process; the memory itself may go to another thread as far
// as its owner `M` may.
unsafe impl<M: Send> Send for Mr<M> {}
// SAFETY: only the keys are read through a shared registration; `M` says whether it may be shared.
unsafe impl<M: Sync> Sync for Mr<M> {}

impl<M> Mr<M> {
    /// Registers `len` bytes from `start` on.
    ///
    /// # Safety
    /// The bytes must stay mapped for as long as `memory` lives, writable unless `what` is
    /// [`Registration::Read`], and nobody may form references to them: the card changes them.
    pub unsafe fn new(
        pd: &Arc<Pd>,
        start: *mut u8,
        len: usize,
        what: Registration,
        memory: M,
    ) -> io::Result<Self> {
        let flags = what.flags().0 as i32;
        let start = start.cast::<c_void>();
        // SAFETY: the domain is allocated (`Pd`, invariant 1); by this function's contract the
        // bytes are mapped for longer than the registration, and only reached as cards' memory is.
        let raw = found(unsafe { ffi::ibv_reg_mr(pd.raw.as_ptr(), start, len, flags) })?;
        Ok(Self { raw, pd: pd.clone(), memory })
    }

    /// The key that this process's queue pairs name the memory with.
    pub fn lkey(&self) -> u32 {
        // SAFETY: registered and not freed (invariant 1); rdma-core does not change the key.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    /// The key that peers name it with.
    pub fn rkey(&self) -> u32 {
        // SAFETY: registered and not freed (invariant 1); rdma-core does not change the key.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    /// The owner of the memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }
}

impl<M> Drop for Mr<M> {
    fn drop(&mut self) {
        if self.pd.context.is_inherited() {
            return;
        }
        // SAFETY: registered in `new` and deregistered here only.
        let code = unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) };
        // The process must not continue while a card may write memory that is about to be unmapped.
        assert!(code == 0, "cannot deregister memory: {}", io::Error::from_raw_os_error(code));
    }
}

/// A completion queue.
pub(super) struct Cq {
    raw: NonNull<ffi::ibv_cq>,
    context: Arc<Context>,
}

// SAFETY: a queue belongs to the process, and rdma-core's functions take it from any thread.
unsafe impl Send for Cq {}
// SAFETY: as for Send: polling locks the queue.
unsafe impl Sync for Cq {}

impl Cq {
    /// A queue for at least `entries` completions.
    pub fn new(context: &Arc<Context>, entries: u32) -> io::Result<Arc<Self>> {
        let none = ptr::null_mut();
        // SAFETY: the context is open (`Context`, invariant 1); no channel and no cookie are
        // wanted.
        let raw = found(unsafe {
            ffi::ibv_create_cq(context.raw.as_ptr(), entries as i32, none, ptr::null_mut(), 0)
        })?;
        Ok(Arc::new(Self { raw, context: context.clone() }))
    }

    /// Takes completions; returns how many, up to the room in `into`.
    pub fn poll(&self, into: &mut [Completion]) -> io::Result<usize> {
        // SAFETY: the queue exists (invariant 1). `Completion` is a transparent `ibv_wc`, and at
        // most as many as there is room for are written. Every provider has this function.
        let count = unsafe {
            ffi::ibv_poll_cq(self.raw.as_ptr(), into.len() as i32, into.as_mut_ptr().cast())
        };
        usize::try_from(count).map_err(|_| io::Error::from_raw_os_error(-count))
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if self.context.is_inherited() {
            return;
        }
        // SAFETY: made in `new` and destroyed here only; the queue pairs that use it hold it, so
        // they are gone (invariant 2).
        let code = unsafe { ffi::ibv_destroy_cq(self.raw.as_ptr()) };
        tell(code, "destroy a completion queue");
    }
}

/// An address that datagrams are sent to.
pub(super) struct Ah {
    raw: NonNull<ffi::ibv_ah>,
    pd: Arc<Pd>,
}

// SAFETY: a handle belongs to the process, and is only read after it was made.
unsafe impl Send for Ah {}
// SAFETY: as for Send: posting copies the contents of the handle.
unsafe impl Sync for Ah {}

impl Ah {
    pub fn new(pd: &Arc<Pd>, route: &Route) -> io::Result<Self> {
        let mut attr = route.attr();
        // SAFETY: the domain is allocated (`Pd`, invariant 1), and `attr` lives through the call.
        let raw = found(unsafe { ffi::ibv_create_ah(pd.raw.as_ptr(), &mut attr) })?;
        Ok(Self { raw, pd: pd.clone() })
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        if self.pd.context.is_inherited() {
            return;
        }
        // SAFETY: made in `new` and destroyed here only. For a SEND that was posted and is not
        // done, the device has the address by number or as a copy: the SEND fails, or is sent.
        let code = unsafe { ffi::ibv_destroy_ah(self.raw.as_ptr()) };
        tell(code, "destroy an address handle");
    }
}

/// Results of functions that return an error number.
fn check(code: i32) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code.abs())) }
}

/// Results of functions that return an object, or null and set `errno`.
fn found<T>(raw: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(raw).ok_or_else(io::Error::last_os_error)
}

/// Logs that an object could not be freed. It stays with the kernel until the process ends, and
/// nothing else is lost.
fn tell(code: i32, action: &'static str) {
    if let Err(error) = check(code) {
        tracing::warn!(%error, "cannot {action}");
    }
}
