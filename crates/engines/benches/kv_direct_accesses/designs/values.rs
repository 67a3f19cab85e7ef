//! Where the values of the two other designs are: in slabs of one size, behind the index.
//!
//! The paper says no more of them than that they "are stored in dynamically allocated slabs"
//! (§5.1.1). Here all values of a table have one length, and which slabs are free is known without
//! an access: that favours these designs, as kv-direct's own slabs cost what they cost. Blocks of a
//! chain are taken from the other end of the same memory.

use loch_engines::lines::{HostMemory, LINE_BYTES, Line, Purpose};
use loch_fabric::lanes::block_on;
use zerocopy::{FromZeros, IntoBytes};

use super::{Memory, zeroed};

/// Sizes of a table apart from its keys.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Lines of memory, the index among them.
    pub lines: u32,
    /// The share of the lines that is index.
    pub index_ratio: f64,
    /// Bytes of every value.
    pub value_bytes: usize,
    /// Bytes of the smallest slab, a power of two.
    pub slab_bytes_min: usize,
}

/// Memory, its slabs and its free lines.
pub struct Values {
    memory: Memory,
    first_line: u32,
    value_bytes: usize,
    slab_bytes: usize,
    /// Slabs below this number were used at least once.
    slabs: u32,
    free_slabs: Vec<u32>,
    /// Lines from this on were used as blocks at least once.
    top: u32,
    free_lines: Vec<u32>,
}

impl Values {
    /// Memory of which the first `index_lines` lines are not for values.
    pub fn new(sizes: &Sizes, index_lines: u32) -> Self {
        Self {
            memory: zeroed(sizes.lines),
            first_line: index_lines,
            value_bytes: sizes.value_bytes,
            slab_bytes: sizes.value_bytes.next_power_of_two().max(sizes.slab_bytes_min),
            slabs: 0,
            free_slabs: Vec::new(),
            top: sizes.lines,
            free_lines: Vec::new(),
        }
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Reads a bucket.
    pub fn read_bucket(&self, at: u32) -> super::slots::Slots {
        super::slots::Slots(block_on(self.memory.read_line(Purpose::Index, at)))
    }

    /// Writes a bucket.
    pub fn write_bucket(&self, at: u32, slots: &super::slots::Slots) {
        block_on(self.memory.write_line(Purpose::Index, at, &slots.0));
    }

    /// The line after the last of `slabs` slabs.
    fn line_after(&self, slabs: u32) -> u64 {
        let bytes = u64::from(slabs) * self.slab_bytes as u64;
        u64::from(self.first_line) + bytes.div_ceil(LINE_BYTES as u64)
    }

    /// A slab: its number, not 0.
    pub fn allocate(&mut self) -> Option<u32> {
        if self.free_slabs.is_empty() && self.line_after(self.slabs + 1) <= self.top.into() {
            self.slabs += 1;
            self.free_slabs.push(self.slabs);
        }
        self.free_slabs.pop()
    }

    /// Gives a slab back.
    pub fn free(&mut self, slab: u32) {
        self.free_slabs.push(slab);
    }

    /// A line for a block of a chain.
    pub fn allocate_line(&mut self) -> Option<u32> {
        if self.free_lines.is_empty() && self.line_after(self.slabs) < self.top.into() {
            self.top -= 1;
            self.free_lines.push(self.top);
        }
        self.free_lines.pop()
    }

    /// Gives a block's line back.
    pub fn free_line(&mut self, line: u32) {
        self.free_lines.push(line);
    }

    /// The first line of a slab, the byte of it where the slab begins, and how many lines its value
    /// has.
    fn place(&self, slab: u32) -> (u32, usize, usize) {
        let at = (slab as usize - 1) * self.slab_bytes;
        let (line, byte) = (at / LINE_BYTES, at % LINE_BYTES);
        (self.first_line + line as u32, byte, self.value_bytes.div_ceil(LINE_BYTES))
    }

    /// Writes the value of a slab, as one access.
    ///
    /// # Panics
    /// If it does not have the length of the table's values.
    pub fn write(&self, slab: u32, value: &[u8]) {
        assert_eq!(value.len(), self.value_bytes, "all values have one length");
        let (line, byte, lines) = self.place(slab);
        // A DMA with byte enables leaves the other bytes of a line as they are.
        let mut content: Vec<Line> = (line..).take(lines).map(|at| self.memory.peek(at)).collect();
        content.as_mut_bytes()[byte..byte + value.len()].copy_from_slice(value);
        block_on(self.memory.write(Purpose::Data, line, &content));
    }

    /// Reads the value of a slab into `value`, as one access.
    pub fn read(&self, slab: u32, value: &mut Vec<u8>) {
        let (line, byte, lines) = self.place(slab);
        let mut content = vec![Line::new_zeroed(); lines];
        block_on(self.memory.read(Purpose::Data, line, &mut content));
        value.clear();
        value.extend_from_slice(&content.as_bytes()[byte..byte + self.value_bytes]);
    }
}
