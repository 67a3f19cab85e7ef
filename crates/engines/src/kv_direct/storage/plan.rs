//! The division of a processor's memory.

use std::ops::Range;
use std::sync::Arc;

use super::{BUCKET_CLASS, LINE_PLACES};
use crate::error::LayoutError;
use crate::kv_direct::bucket::INLINE_BYTES_MAX;
use crate::kv_direct::header::Header;
use crate::kv_direct::item::Format;
use crate::kv_direct::slab::{Class, PLACES_MAX, Pools};
use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::lines::LINE_BYTES;

/// At first, free memory is in slabs of at least this size.
const FREE_CLASS: Class = Class::holding(64 << 10).expect("a class for 64 KiB");

const _: () = assert!(FREE_CLASS.number() >= BUCKET_CLASS.number());

/// The requirements for a processor's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Bytes of the memory.
    pub bytes: u64,
    /// The hash index's share of the memory (kv-direct §3.3.1, "hash index ratio").
    pub index_ratio: f64,
    /// Entries of up to this many bytes are inline ("inline threshold"); 0: no entry is inline.
    pub inline_bytes_max: u16,
    /// Whether entries have versions.
    pub versions: bool,
    /// Bytes of the longest value.
    pub value_bytes_max: u64,
    /// Bytes of every key, if all keys have the same length.
    pub key_bytes: Option<u16>,
}

/// The division of a processor's memory: first the index, then the slabs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    options: Options,
    lines: u32,
    buckets: u32,
}

impl Plan {
    /// The most bytes of memory that a processor can have.
    pub const BYTES_MAX: u64 = (PLACES_MAX / LINE_PLACES) as u64 * LINE_BYTES as u64;

    /// Divides the memory. An incomplete last line is not used.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if an option is out of range; it names the option and its range.
    pub fn new(options: &Options) -> Result<Self, LayoutError> {
        let wrong = |what: String| Err(LayoutError::Geometry(what));
        let Options { bytes, index_ratio, inline_bytes_max, value_bytes_max, .. } = *options;
        let line_bytes = LINE_BYTES as u64;
        let most = Self::BYTES_MAX;
        if !(2 * line_bytes..=most).contains(&bytes) {
            return wrong(format!(
                "a processor has {bytes} bytes of memory, it may have {} to {most}",
                2 * line_bytes
            ));
        }
        if !(index_ratio > 0.0 && index_ratio <= 1.0) {
            return wrong(format!(
                "the hash index ratio is {index_ratio}, not above 0 and up to 1"
            ));
        }
        if inline_bytes_max as usize > INLINE_BYTES_MAX {
            return wrong(format!(
                "the inline threshold is {inline_bytes_max} bytes, a bucket has {INLINE_BYTES_MAX}"
            ));
        }
        if value_bytes_max > VALUE_BYTES_MAX {
            return wrong(format!(
                "value_max is {value_bytes_max}, it may be up to {VALUE_BYTES_MAX}"
            ));
        }
        if options.key_bytes == Some(0) {
            return wrong("keys have at least one byte".into());
        }
        let lines = (bytes / line_bytes) as u32;
        let buckets = (f64::from(lines) * index_ratio).round() as u32;
        Ok(Self { options: *options, lines, buckets: buckets.clamp(1, lines) })
    }

    /// Lines of the memory.
    pub fn lines(&self) -> u32 {
        self.lines
    }

    /// Buckets of the hash index, which are the first lines.
    pub fn buckets(&self) -> u32 {
        self.buckets
    }

    /// The memory that is allocated as slabs, in places.
    pub fn slab_places(&self) -> Range<u32> {
        self.buckets * LINE_PLACES..self.lines * LINE_PLACES
    }

    /// The largest slab that there can be: the slab of the longest entry, or one of 64 KiB if that
    /// is larger. Chained buckets need slabs too, and few large free slabs are better than many
    /// small ones.
    pub fn largest_class(&self) -> Class {
        let key = self.options.key_bytes.map_or(KEY_BYTES_MAX, usize::from);
        let value = self.options.value_bytes_max as usize;
        let body = self.format().body_bytes(key, value, true);
        let longest = Header::class_for(body).expect("a class for every value up to the limit");
        longest.max(FREE_CLASS)
    }

    /// Pools that own all memory that is allocated as slabs.
    pub fn pools(&self) -> Arc<Pools> {
        Pools::new(self.slab_places(), self.largest_class())
    }

    /// The format of entries.
    pub fn format(&self) -> Format {
        Format { key_bytes: self.options.key_bytes, versions: self.options.versions }
    }

    /// Bytes of the longest entry that is inline.
    pub fn inline_bytes_max(&self) -> u16 {
        self.options.inline_bytes_max
    }

    /// Bytes of the longest value.
    pub fn value_bytes_max(&self) -> u64 {
        self.options.value_bytes_max
    }
}
