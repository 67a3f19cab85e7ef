//! Switches of the table that Loch's engines are measured on.
//!
//! Each is one of the optimisations of nessie §4.3.2, so that what it brings
//! can be measured (Figure 13 there), or part of the index's shape. The
//! defaults are those of a table that nobody has tuned.

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// The table's switches. Peers have none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Loch's table")]
pub struct TableOptions {
    /// Index entries carry seven bits of the key's hash, so that other keys' entries are not read
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "on")]
    #[arg(hide_short_help = true)]
    pub filter_bits: Switch,
    /// Clients remember index words and remote entries; auto: where a round trip is dear, which
    /// over shm it is not
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "auto")]
    #[arg(hide_short_help = true)]
    pub cache: AutoSwitch,
    /// Of entries above 4 KiB, header and key are read first
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "on")]
    #[arg(hide_short_help = true)]
    pub multi_read: Switch,
    /// A GET reads all of a key's slots in its first doorbell; auto: where a round trip is dear
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "auto")]
    #[arg(hide_short_help = true)]
    pub batched_reads: AutoSwitch,
    /// Entries carry checksums, as they have to where a second look at an entry is dear: with
    /// --fabric sim they always do
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "off")]
    #[arg(hide_short_help = true)]
    pub checksums: Switch,
    /// Hash functions of the index, 2 to 4
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(hide_short_help = true, value_parser = clap::value_parser!(u8).range(2..=4))]
    pub ways: u8,
    /// Slots that each hash function gives a key: 1 (the paper's index), 2 or 4
    #[arg(long, value_name = "N", default_value = "4")]
    #[arg(hide_short_help = true, value_parser = bucket_slots)]
    pub bucket_slots: u8,
    /// Share of the index's slots that the records fill
    #[arg(long, value_name = "PERCENT", default_value_t = 75)]
    #[arg(hide_short_help = true, value_parser = clap::value_parser!(u8).range(1..=95))]
    pub index_fill: u8,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Switch {
    /// In use.
    On,
    /// Not in use.
    Off,
}

/// On, off, or what the engine takes for best on this fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AutoSwitch {
    /// In use.
    On,
    /// Not in use.
    Off,
    /// The engine decides.
    Auto,
}

impl From<Switch> for bool {
    fn from(switch: Switch) -> bool {
        switch == Switch::On
    }
}

impl From<AutoSwitch> for Option<bool> {
    fn from(switch: AutoSwitch) -> Option<bool> {
        match switch {
            AutoSwitch::On => Some(true),
            AutoSwitch::Off => Some(false),
            AutoSwitch::Auto => None,
        }
    }
}

fn bucket_slots(text: &str) -> Result<u8, String> {
    match text.parse() {
        Ok(slots @ (1 | 2 | 4)) => Ok(slots),
        _ => Err("a bucket has 1, 2 or 4 slots".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::spec::tests::spec;

    #[test]
    fn the_defaults_are_those_of_a_table_nobody_tuned() {
        let (options, table) = (spec("").unwrap().table, loch::TableConfig::default());
        assert_eq!(bool::from(options.filter_bits), table.filter_bits);
        assert_eq!(Option::<bool>::from(options.cache), table.cache);
        assert_eq!(bool::from(options.multi_read), table.multi_read);
        assert_eq!(Option::<bool>::from(options.batched_reads), table.batched_reads);
        assert_eq!(bool::from(options.checksums), table.checksums);
        assert_eq!((options.ways, options.bucket_slots), (table.ways, table.bucket_slots));
    }

    #[test]
    fn every_switch_can_be_turned() {
        let options = spec(
            "--filter-bits off --cache on --multi-read off --batched-reads on --checksums on \
             --ways 2 --bucket-slots 1 --index-fill 50",
        );
        let expected = TableOptions {
            filter_bits: Switch::Off,
            cache: AutoSwitch::On,
            multi_read: Switch::Off,
            batched_reads: AutoSwitch::On,
            checksums: Switch::On,
            ways: 2,
            bucket_slots: 1,
            index_fill: 50,
        };
        assert_eq!(options.unwrap().table, expected);
        for wrong in ["--bucket-slots 3", "--ways 5", "--cache maybe", "--index-fill 96"] {
            assert!(spec(wrong).is_err(), "{wrong}");
        }
    }
}
