//! The copy engine: moves bytes between shared memory and this process's own.
//!
//! Rust has no defined data race, so racing copies are made where the language does not look: in
//! inline assembly, like a DMA engine would. Where there is none for the target (and under Miri)
//! the copy is made of atomics. The result of a racing copy may be torn at any byte; whoever asked
//! for it validates it.

/// From this length on `rep movsb` beats vector moves: its start-up cost is paid back.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const REP_MOVSB_BYTES_MIN: usize = 1024;

/// Copies `len` bytes; either side may be memory that others write.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes for the whole call, and the two must
/// not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    use std::arch::asm;
    // SAFETY: the caller vouches for `len` bytes on both sides. Every branch reads and writes only
    // inside them: the vector loop covers whole 16-byte blocks and then the (overlapping) last 16,
    // the short branches cover the first and the last n bytes with n <= len.
    unsafe {
        if len >= REP_MOVSB_BYTES_MIN {
            asm!("rep movsb", inout("rcx") len => _, inout("rsi") src => _, inout("rdi") dst => _,
                options(nostack, preserves_flags));
        } else if len >= 16 {
            asm!(
                "2:",
                "movups {x}, [{s} + {i}]",
                "movups [{d} + {i}], {x}",
                "add {i}, 16",
                "cmp {i}, {last}",
                "jb 2b",
                "movups {x}, [{s} + {last}]",
                "movups [{d} + {last}], {x}",
                s = in(reg) src, d = in(reg) dst, last = in(reg) len - 16,
                i = inout(reg) 0usize => _, x = out(xmm_reg) _,
                options(nostack));
        } else if len >= 8 {
            asm!("mov {a}, [{s}]", "mov {b}, [{s} + {l}]", "mov [{d}], {a}", "mov [{d} + {l}], {b}",
                s = in(reg) src, d = in(reg) dst, l = in(reg) len - 8, a = out(reg) _, b = out(reg) _,
                options(nostack, preserves_flags));
        } else if len >= 4 {
            asm!("mov {a:e}, [{s}]", "mov {b:e}, [{s} + {l}]", "mov [{d}], {a:e}", "mov [{d} + {l}], {b:e}",
                s = in(reg) src, d = in(reg) dst, l = in(reg) len - 4, a = out(reg) _, b = out(reg) _,
                options(nostack, preserves_flags));
        } else if len > 0 {
            asm!("rep movsb", inout("rcx") len => _, inout("rsi") src => _, inout("rdi") dst => _,
                options(nostack, preserves_flags));
        }
    }
}

/// Copies `len` bytes; either side may be memory that others write.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes for the whole call, and the two must
/// not overlap.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
    let mut i = 0;
    // SAFETY: the caller vouches for `len` bytes on both sides; `i` stays below `len`, and words are
    // used only where both sides are 8-aligned. Atomics may race with anything.
    unsafe {
        if (src as usize | dst as usize).is_multiple_of(8) {
            while i + 8 <= len {
                let word = AtomicU64::from_ptr(src.add(i) as *mut u64).load(Relaxed);
                AtomicU64::from_ptr(dst.add(i).cast()).store(word, Relaxed);
                i += 8;
            }
        }
        while i < len {
            let byte = AtomicU8::from_ptr(src.add(i) as *mut u8).load(Relaxed);
            AtomicU8::from_ptr(dst.add(i)).store(byte, Relaxed);
            i += 1;
        }
    }
}

/// Asks the CPU for the line of `at`. A hint: any address is allowed.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: PREFETCHT0 never faults and changes no memory, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Asks the CPU for the line of `at`, to change it. A hint: any address is allowed.
#[inline(always)]
pub(super) fn prefetch_to_write(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: PREFETCHW never faults and changes no memory, whatever the address; processors
    // without it take it for a no-op.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn copies_exactly_len_bytes(len in 0usize..3000, src_off in 0usize..17, dst_off in 0usize..17, seed: u8) {
            let src: Vec<u8> = (0..len + 32).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect();
            let mut dst = vec![0xAAu8; len + 64];
            // SAFETY: both vectors are longer than their offset plus `len`, and they are distinct.
            unsafe { copy(src.as_ptr().add(src_off), dst.as_mut_ptr().add(dst_off), len) };
            prop_assert_eq!(&dst[dst_off..dst_off + len], &src[src_off..src_off + len]);
            prop_assert!(dst[..dst_off].iter().chain(&dst[dst_off + len..]).all(|b| *b == 0xAA));
        }
    }
}
