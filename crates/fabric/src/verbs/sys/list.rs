//! The devices of this host.

use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys as ffi;

use super::{Context, found};
use crate::ForkMark;
use crate::verbs::DeviceError;

/// The devices of the host at one moment.
pub(in crate::verbs) struct DeviceList {
    raw: NonNull<*mut ffi::ibv_device>,
    len: usize,
}

impl DeviceList {
    /// # Errors
    /// [`DeviceError::Library`] or [`DeviceError::Kernel`].
    pub fn new() -> Result<Self, DeviceError> {
        super::library::check()?;
        let mut len = 0;
        // SAFETY: `len` is room for the answer.
        let raw = found(unsafe { ffi::ibv_get_device_list(&mut len) });
        let raw = raw.map_err(|source| DeviceError::Kernel { source })?;
        Ok(Self { raw, len: len as usize })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    fn device(&self, index: usize) -> *mut ffi::ibv_device {
        assert!(index < self.len, "device {index} of {}", self.len);
        // SAFETY: the list has `len` entries, and is freed in Drop only.
        unsafe { *self.raw.as_ptr().add(index) }
    }

    pub fn name(&self, index: usize) -> String {
        // SAFETY: the device is one of the list, which is not freed yet.
        let name = unsafe { ffi::ibv_get_device_name(self.device(index)) };
        if name.is_null() {
            return format!("device {index}");
        }
        // SAFETY: not null, so it is the device's name, a C string that lives as long as the list.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    pub fn open(&self, index: usize) -> io::Result<Arc<Context>> {
        let mark = ForkMark::new()?;
        // SAFETY: the device is one of the list, which is not freed yet; an opened context does not
        // need the list any more.
        let raw = found(unsafe { ffi::ibv_open_device(self.device(index)) })?;
        Ok(Arc::new(Context { raw, mark }))
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: got in `new` and freed here only.
        unsafe { ffi::ibv_free_device_list(self.raw.as_ptr()) };
    }
}
