//! The copy engine: moves bytes between shared memory and this process's own.
//!
//! Rust has no defined data race, so racing copies are made in inline assembly, which the language
//! does not inspect, as a DMA engine would make them. On targets without it (and under Miri) the
//! copy is made of atomics. The result of a racing copy may be torn between any two words; the
//! caller validates it.
//!
//! # Invariants
//! 1. A word that is aligned in shared memory, and copied in full, is read or written in one
//!    access, as cards do it. An access of several words, aligned or not, counts as one access for
//!    each aligned word in it, because processors divide accesses at lines, which end with words.
//! 2. Therefore a READ takes no part of such a word a second time, unless it takes the whole word
//!    again; and a WRITE writes no part of it before the whole word.
//! 3. The instruction that writes the last byte of a WRITE is its last that writes: another thread
//!    that has seen that byte may change all of them, and this one may stand still at any moment.

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) use moves::{copy_in, copy_out};
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) use words::{copy_in, copy_out};

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod moves {
    use std::arch::asm;

    /// From this length on `rep movsq` out of shared memory beats vector moves: its start-up cost
    /// is paid back.
    const REP_OUT_BYTES_MIN: usize = 1024;
    /// The same for copies into shared memory. `rep movsq` starts more slowly when the caches lack
    /// the destination.
    const REP_IN_BYTES_MIN: usize = 4096;
    /// From this length on copies into shared memory go past the caches ([`stream`]). Memory for
    /// values that long is rarely in them, and a usual store reads every line first: one processor
    /// writes 6 to 9 GB/s, and 14 to 20 past its caches.
    const STREAM_BYTES_MIN: usize = 64 << 10;
    /// From this length on a copy into shared memory calls [`lines`]. Inline, that loop would make
    /// each of the many copies of short parts longer.
    const LINES_BYTES_MIN: usize = 256;

    /// Copies `len` bytes out of memory that others write.
    ///
    /// # Safety
    /// `src` must be readable and `dst` writable for `len` bytes for the whole call, and the two
    /// must not overlap.
    #[inline(always)]
    pub unsafe fn copy_out(src: *const u8, dst: *mut u8, len: usize) {
        let past = src.addr() % 8;
        // SAFETY: the caller vouches for `len` bytes on both sides, and every move is inside them.
        unsafe {
            if len >= REP_OUT_BYTES_MIN {
                return long(src, dst, len, (8 - past) % 8);
            }
            if len >= 16 {
                // If the first and the last move take a word in part, another move takes it in
                // full, later.
                move_16(src, dst, len - 16);
                move_16(src, dst, 0);
                let mut at = 16 - past;
                while at + 64 < len {
                    move_64(src, dst, at);
                    at += 64;
                }
                while at + 16 < len {
                    move_16(src, dst, at);
                    at += 16;
                }
                if at + 8 <= len {
                    move_8(src, dst, at);
                }
            } else if len >= 8 {
                move_8(src, dst, len - 8);
                move_8(src, dst, 0);
                let first = (8 - past) % 8;
                if first + 8 <= len {
                    move_8(src, dst, first);
                }
            } else {
                short(src, dst, len);
            }
        }
    }

    /// Copies `len` bytes into memory that others read.
    ///
    /// # Safety
    /// As for [`copy_out`].
    #[inline(always)]
    pub unsafe fn copy_in(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: the caller vouches for `len` bytes on both sides, and every move is inside them.
        unsafe {
            if len < 8 {
                // No whole word, however they lie: no branch depends on that.
                return short(src, dst, len);
            }
            let before = ((8 - dst.addr() % 8) % 8).min(len);
            if len >= REP_IN_BYTES_MIN {
                if len >= STREAM_BYTES_MIN {
                    return stream(src, dst, len, before);
                }
                return long(src, dst, len, before);
            }
            let (src, dst, len) = match before {
                0 => (src, dst, len),
                before => {
                    short(src, dst, before);
                    (src.add(before), dst.add(before), len - before)
                }
            };
            // From here on a move that overlaps another writes the same bytes again.
            if len >= 16 {
                let mut at = if len < LINES_BYTES_MIN { 0 } else { lines(src, dst, len) };
                while at + 16 < len {
                    move_16(src, dst, at);
                    at += 16;
                }
                move_16(src, dst, len - 16);
            } else if len >= 8 {
                move_8(src, dst, 0);
                if len > 8 {
                    move_8(src, dst, len - 8);
                }
            } else {
                short(src, dst, len);
            }
        }
    }

    /// Copies 64 bytes at a time, and leaves the last 1 to 64. Returns the number of bytes copied.
    ///
    /// # Safety
    /// As for [`copy_out`].
    #[inline(never)]
    unsafe fn lines(src: *const u8, dst: *mut u8, len: usize) -> usize {
        let mut at = 0;
        while at + 64 < len {
            // SAFETY: the 64 bytes from `at` on are among the caller's `len` bytes.
            unsafe { move_64(src, dst, at) };
            at += 64;
        }
        at
    }

    /// Copies past the caches. All of it is written before anything that this thread writes later.
    ///
    /// # Safety
    /// As for [`copy_out`]; `before` are the bytes before the first aligned word of `dst`, and
    /// `len` is not less than 64.
    #[inline(never)]
    unsafe fn stream(src: *const u8, dst: *mut u8, len: usize, before: usize) {
        // SAFETY: all moves are among the caller's `len` bytes. `at` plus `dst` is a multiple of 16
        // in the loop, as the stores demand; only the registers named are clobbered.
        unsafe {
            short(src, dst, before);
            let mut at = before;
            if !(dst.addr() + at).is_multiple_of(16) {
                move_8(src, dst, at);
                at += 8;
            }
            while at + 64 <= len {
                asm!("movups {a}, [{s}]", "movups {b}, [{s} + 16]", "movups {c}, [{s} + 32]",
                    "movups {e}, [{s} + 48]", "movntps [{d}], {a}", "movntps [{d} + 16], {b}",
                    "movntps [{d} + 32], {c}", "movntps [{d} + 48], {e}", s = in(reg) src.add(at),
                    d = in(reg) dst.add(at), a = out(xmm_reg) _, b = out(xmm_reg) _,
                    c = out(xmm_reg) _, e = out(xmm_reg) _, options(nostack, preserves_flags));
                at += 64;
            }
            long(src.add(at), dst.add(at), len - at, 0);
            // Without this, others could see what is stored next before these bytes.
            asm!("sfence", options(nostack, preserves_flags));
        }
    }

    /// The bytes before the first aligned word, the words, and the bytes behind them.
    ///
    /// # Safety
    /// As for [`copy_out`]; `before` is not more than `len`.
    #[inline(always)]
    unsafe fn long(src: *const u8, dst: *mut u8, len: usize, before: usize) {
        let words = (len - before) / 8;
        let behind = before + words * 8;
        // SAFETY: the three parts are the caller's `len` bytes.
        unsafe {
            short(src, dst, before);
            asm!("rep movsq", inout("rcx") words => _, inout("rsi") src.add(before) => _,
                inout("rdi") dst.add(before) => _, options(nostack, preserves_flags));
            short(src.add(behind), dst.add(behind), len - behind);
        }
    }

    /// Copies fewer than eight bytes, which contain no whole word.
    ///
    /// # Safety
    /// As for [`copy_out`].
    #[inline(always)]
    unsafe fn short(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: the caller vouches for `len` bytes on both sides. The second move ends with them,
        // and begins with or behind them: four fit.
        unsafe {
            if len > 4 {
                asm!("mov {a:e}, [{s}]", "mov {b:e}, [{s} + {l}]", "mov [{d}], {a:e}",
                    "mov [{d} + {l}], {b:e}", s = in(reg) src, d = in(reg) dst, l = in(reg) len - 4,
                    a = out(reg) _, b = out(reg) _, options(nostack, preserves_flags));
            } else if len == 4 {
                asm!("mov {a:e}, [{s}]", "mov [{d}], {a:e}", s = in(reg) src, d = in(reg) dst,
                    a = out(reg) _, options(nostack, preserves_flags));
            } else if len > 0 {
                asm!("rep movsb", inout("rcx") len => _, inout("rsi") src => _,
                    inout("rdi") dst => _, options(nostack, preserves_flags));
            }
        }
    }

    /// # Safety
    /// 64 bytes from `at` on must be readable at `src`, and writable at `dst`.
    #[inline(always)]
    unsafe fn move_64(src: *const u8, dst: *mut u8, at: usize) {
        // SAFETY: the caller vouches for the 64 bytes on both sides.
        unsafe {
            move_16(src, dst, at);
            move_16(src, dst, at + 16);
            move_16(src, dst, at + 32);
            move_16(src, dst, at + 48);
        }
    }

    /// # Safety
    /// 16 bytes from `at` on must be readable at `src`, and writable at `dst`.
    #[inline(always)]
    unsafe fn move_16(src: *const u8, dst: *mut u8, at: usize) {
        // SAFETY: the caller vouches for the 16 bytes on both sides; only `x` is clobbered.
        unsafe {
            asm!("movups {x}, [{s} + {i}]", "movups [{d} + {i}], {x}", s = in(reg) src,
                d = in(reg) dst, i = in(reg) at, x = out(xmm_reg) _,
                options(nostack, preserves_flags));
        }
    }

    /// # Safety
    /// 8 bytes from `at` on must be readable at `src`, and writable at `dst`.
    #[inline(always)]
    unsafe fn move_8(src: *const u8, dst: *mut u8, at: usize) {
        // SAFETY: the caller vouches for the 8 bytes on both sides; only `x` is clobbered.
        unsafe {
            asm!("mov {x}, [{s} + {i}]", "mov [{d} + {i}], {x}", s = in(reg) src, d = in(reg) dst,
                i = in(reg) at, x = out(reg) _, options(nostack, preserves_flags));
        }
    }
}

#[cfg(any(test, not(all(target_arch = "x86_64", not(miri)))))]
#[cfg_attr(
    all(target_arch = "x86_64", not(miri)),
    allow(dead_code, reason = "compared with `moves`")
)]
mod words {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

    /// Copies `len` bytes out of memory that others write.
    ///
    /// # Safety
    /// `src` must be readable and `dst` writable for `len` bytes for the whole call, and the two
    /// must not overlap.
    pub unsafe fn copy_out(src: *const u8, dst: *mut u8, len: usize) {
        let mut i = 0;
        while i < len {
            // SAFETY: the caller vouches for `len` bytes on both sides; a word is taken if all of
            // it is among them and it is aligned. Atomics may race with anything; `dst` is private.
            unsafe {
                let (from, to) = (src.add(i).cast_mut(), dst.add(i));
                if from.addr().is_multiple_of(8) && i + 8 <= len {
                    let word = AtomicU64::from_ptr(from.cast()).load(Relaxed);
                    to.cast::<u64>().write_unaligned(word);
                    i += 8;
                } else {
                    to.write(AtomicU8::from_ptr(from).load(Relaxed));
                    i += 1;
                }
            }
        }
    }

    /// Copies `len` bytes into memory that others read.
    ///
    /// # Safety
    /// As for [`copy_out`].
    pub unsafe fn copy_in(src: *const u8, dst: *mut u8, len: usize) {
        let mut i = 0;
        while i < len {
            // SAFETY: as in `copy_out`, with the sides changed.
            unsafe {
                let (from, to) = (src.add(i), dst.add(i));
                if to.addr().is_multiple_of(8) && i + 8 <= len {
                    let word = from.cast::<u64>().read_unaligned();
                    AtomicU64::from_ptr(to.cast()).store(word, Relaxed);
                    i += 8;
                } else {
                    AtomicU8::from_ptr(to).store(from.read(), Relaxed);
                    i += 1;
                }
            }
        }
    }
}

/// Prefetches the line of `at`. A hint: any address is allowed.
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

/// Prefetches the line of `at` for a change. A hint: any address is allowed.
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

    /// Invariant 3, by a processor that stops after each instruction.
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
    mod step_by_step {
        use std::arch::asm;
        use std::mem::MaybeUninit;
        use std::ptr;
        use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

        use super::super::copy_in;

        const FULL: u8 = 0xAA;
        const EMPTY: u8 = 0x55;
        static BEGIN: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
        static LEN: AtomicUsize = AtomicUsize::new(0);

        /// Plays the other thread: as soon as the last byte is there, it changes all of them, once.
        extern "C" fn after_an_instruction(_: libc::c_int) {
            let (begin, len) = (BEGIN.load(Relaxed), LEN.load(Relaxed));
            // SAFETY: the test has set both to memory of its own, which it does not use while it is
            // stopped.
            unsafe {
                if len > 0 && begin.add(len - 1).read_volatile() == FULL {
                    ptr::write_bytes(begin, EMPTY, len);
                    LEN.store(0, Relaxed);
                }
            }
        }

        #[test]
        fn a_write_writes_nothing_after_its_last_byte() {
            // SAFETY: all zeros are an action without flags; the handler calls nothing that a
            // handler must not call. Nothing else in these tests uses the signal.
            unsafe {
                let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
                action.sa_sigaction = after_an_instruction as extern "C" fn(libc::c_int) as usize;
                assert_eq!(libc::sigaction(libc::SIGTRAP, &action, ptr::null_mut()), 0);
            }
            let source = vec![FULL; 70_000];
            let long = [255, 256, 257, 4095, 4096, 4100, 4104, 65_536, 65_540, 65_544];
            for len in (1..100).chain(long) {
                for offset in (0..8).step_by(if len < 100 { 1 } else { 4 }) {
                    let mut words = vec![0u64; len / 8 + 3];
                    let begin = words.as_mut_ptr().cast::<u8>().wrapping_add(offset);
                    BEGIN.store(begin, Relaxed);
                    LEN.store(len, Relaxed);
                    // SAFETY: `begin` has `len` bytes behind it, and so has the source. The flag
                    // makes the processor stop after each instruction, for the handler above, until
                    // it is cleared; both ways the other flags stay as they are.
                    unsafe {
                        asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq");
                        copy_in(source.as_ptr(), begin, len);
                        asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq");
                    }
                    // SAFETY: as above.
                    let left = unsafe { std::slice::from_raw_parts(begin, len) };
                    assert!(left.iter().all(|byte| *byte == EMPTY), "{len} bytes at {offset}");
                }
            }
        }
    }

    type Copy = unsafe fn(*const u8, *mut u8, usize);
    const COPIES: [Copy; 4] = [copy_in, copy_out, words::copy_in, words::copy_out];

    proptest! {
        #[test]
        fn copies_exactly_len_bytes(
            len in prop_oneof![0usize..600, 600usize..5000, 65_500usize..66_000],
            src_off in 0usize..17,
            dst_off in 0usize..17,
            seed: u8,
        ) {
            let src: Vec<u8> = (0..len + 32).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect();
            for copy in COPIES {
                let mut dst = vec![0xAAu8; len + 64];
                // SAFETY: both vectors are longer than their offset plus `len`, and they are
                // distinct.
                unsafe { copy(src.as_ptr().add(src_off), dst.as_mut_ptr().add(dst_off), len) };
                prop_assert_eq!(&dst[dst_off..dst_off + len], &src[src_off..src_off + len]);
                let mut around = dst[..dst_off].iter().chain(&dst[dst_off + len..]);
                prop_assert!(around.all(|b| *b == 0xAA));
            }
        }
    }
}
