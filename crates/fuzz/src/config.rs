//! A node's configuration: any text is a configuration that survives the trip, or an error; any
//! configuration is a layout that lies in its region, or an error.

use loch::{ByteSize, NodeConfig};
use loch_engines::region::Header;
use zerocopy::IntoBytes;

use crate::region_header::assert_inside;

/// Bytes as the TOML of a node's configuration, and as a size.
///
/// # Panics
/// If what was read is not what was written, or a layout is not one.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(size) = text.parse::<ByteSize>() {
        assert_eq!(size.to_string().parse(), Ok(size), "a size survives the trip");
    }
    let Ok(config) = NodeConfig::from_toml(text) else {
        return;
    };
    // A number over what TOML can write is an error too.
    if let Ok(written) = toml::to_string(&config) {
        let again = NodeConfig::from_toml(&written).expect("what was written can be read");
        assert_eq!(again, config, "a configuration survives the trip");
    }
    let Ok((header, tables)) = loch::fuzzing::plan(&config) else {
        return;
    };
    let parsed = Header::parse(header.sealed().as_bytes(), header.region_bytes);
    assert_eq!(parsed, Ok(header.sealed()), "a planned header is one");
    assert_inside(&header, &tables);
}
