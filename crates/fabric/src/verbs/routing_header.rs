//! The routing header in front of every datagram, which says who sent it.

/// Bytes in front of every message.
pub(super) const HEADER_BYTES: usize = 40;

/// The sender that a routing header names: the source of an IPv6 header, or of the IPv4 header in
/// the last 20 bytes; RoCE cards leave the 20 bytes before an IPv4 header as they were.
pub(super) fn source_gid(header: &[u8; HEADER_BYTES]) -> [u8; 16] {
    let (_, v4) = header.split_at(20);
    let is_v6 = header[0] >> 4 == 6 && !(v4[0] == 0x45 && has_checksum(v4));
    let mut gid = [0; 16];
    if is_v6 {
        gid.copy_from_slice(&header[8..24]);
    } else if v4[0] >> 4 == 4 {
        gid[10..12].fill(0xFF);
        gid[12..].copy_from_slice(&v4[12..16]);
    }
    gid
}

/// Whether an IPv4 header's checksum is right.
fn has_checksum(header: &[u8]) -> bool {
    let words = header.chunks_exact(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
    let sum: u32 = words.sum();
    (sum & 0xFFFF) + (sum >> 16) == 0xFFFF
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sender_is_read_from_either_header() {
        let mut header = [0; HEADER_BYTES];
        assert_eq!(source_gid(&header), [0; 16], "neither");
        header[20] = 0x45;
        header[32..36].copy_from_slice(&[10, 9, 0, 1]);
        let mut expected = [0; 16];
        expected[10..].copy_from_slice(&[0xFF, 0xFF, 10, 9, 0, 1]);
        assert_eq!(source_gid(&header), expected);
        let mut header = [0; HEADER_BYTES];
        header[0] = 0x60;
        header[8..24].copy_from_slice(&[7; 16]);
        assert_eq!(source_gid(&header), [7; 16]);
        // The bytes before an IPv4 header may look like IPv6; the checksum tells the two apart.
        let v4 = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 192, 168, 0, 1, 192, 168, 0,
            199,
        ];
        header[20..].copy_from_slice(&v4);
        expected[12..].copy_from_slice(&[192, 168, 0, 1]);
        assert_eq!(source_gid(&header), expected);
    }
}
