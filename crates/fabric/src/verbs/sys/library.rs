//! Whether rdma-core is there.
//!
//! `rdma-mummy-sys` opens the library before `main` and leaves its functions out if that fails:
//! each then answers with an error. This module opens the same library again to learn why, and to
//! check that it has all functions that cannot answer with an error of their own.

use std::ffi::{CStr, c_char, c_void};

use crate::verbs::DeviceError;

const LIBRARY: &CStr = c"libibverbs.so.1";

/// Every function of the library that is called, except `ibv_poll_cq` and its like: those belong to
/// the device's provider.
const FUNCTIONS: [&CStr; 19] = [
    c"ibv_get_device_list",
    c"ibv_free_device_list",
    c"ibv_get_device_name",
    c"ibv_open_device",
    c"ibv_close_device",
    c"ibv_query_device",
    c"ibv_query_port",
    c"_ibv_query_gid_ex",
    c"ibv_alloc_pd",
    c"ibv_dealloc_pd",
    c"ibv_reg_mr",
    c"ibv_dereg_mr",
    c"ibv_create_cq",
    c"ibv_destroy_cq",
    c"ibv_create_qp",
    c"ibv_modify_qp",
    c"ibv_destroy_qp",
    c"ibv_create_ah",
    c"ibv_destroy_ah",
];

/// # Errors
/// [`DeviceError::Library`] if it cannot be opened, or is too old.
pub(in crate::verbs) fn check() -> Result<(), DeviceError> {
    has_all(LIBRARY, &FUNCTIONS).map_err(|why| DeviceError::Library { why })
}

fn has_all(library: &CStr, functions: &[&CStr]) -> Result<(), String> {
    // SAFETY: the name is a C string. The library's initialisers are sound to run: if it can be
    // opened, rdma-mummy-sys has opened it before `main`.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: it is called right after the failure, on the same thread.
        return Err(unsafe { last_error() });
    }
    // The handle is not closed: it is the one that rdma-mummy-sys goes on using.
    let missing = functions.iter().find(|name| !has(handle, name));
    missing.map_or(Ok(()), |name| Err(format!("it has no {}", name.to_string_lossy())))
}

fn has(library: *mut c_void, function: &CStr) -> bool {
    // SAFETY: the handle was opened by the caller and is never closed, the name is a C string, and
    // the function that is found is not called here.
    let found = unsafe { libc::dlsym(library, function.as_ptr()) };
    !found.is_null()
}

/// # Safety
/// Must be called on the thread on which `dlopen` failed, before any other `dl` function.
unsafe fn last_error() -> String {
    // SAFETY: may be called at any time; null or a string of the thread's that stays until the next
    // call of a `dl` function on it.
    let text: *const c_char = unsafe { libc::dlerror() };
    if text.is_null() {
        return "not found".to_owned();
    }
    // SAFETY: not null, so it is that string; it is copied before anything else is called.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let error = has_all(c"libno-such-library.so.1", &[]).expect_err("nobody has it");
        assert!(error.contains("libno-such-library"), "{error}");
        let error = has_all(c"libc.so.6", &[c"strlen", c"ibv_no_such"]).expect_err("not in libc");
        assert_eq!(error, "it has no ibv_no_such");
        assert_eq!(has_all(c"libc.so.6", &[c"strlen"]), Ok(()));
    }

    #[test]
    fn the_error_names_the_package() {
        let error = DeviceError::Library { why: "gone".into() }.to_string();
        assert!(error.contains("ibverbs-providers") && error.contains("(gone)"), "{error}");
    }
}
