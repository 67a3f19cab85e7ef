//! The checksum of data in memory and on disk.

/// The CRC-64 (NVME) that guards headers, directories and, where a table asks for it, entries.
pub fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
}
