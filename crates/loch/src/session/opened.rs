//! The fabric between machines that a process has opened.

use super::medium::Medium;
use super::tcp::Tcp;
#[cfg(feature = "verbs")]
use super::verbs::Card;
use super::wire::{DeviceChoice, MediumChoice};
use crate::Result;

/// A fabric between machines that was opened.
#[derive(Clone)]
pub(crate) enum AnyMedium {
    /// The fabric `tcp`.
    Tcp(Tcp),
    /// The fabric `verbs`, with its device.
    #[cfg(feature = "verbs")]
    Verbs(Card),
}

impl AnyMedium {
    /// Opens a fabric.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    pub fn open(choice: &MediumChoice) -> Result<Self> {
        match choice {
            MediumChoice::Tcp {} => Ok(Self::Tcp(Tcp)),
            #[cfg(feature = "verbs")]
            MediumChoice::Verbs(choice) => Card::open(choice).map(Self::Verbs),
            #[cfg(not(feature = "verbs"))]
            MediumChoice::Verbs(_) => {
                let problem = "this build has no verbs backend: use \"tcp\", or build Loch with the \
                               feature `verbs`";
                Err(crate::Error::config("fabric", problem))
            }
        }
    }
}

impl MediumChoice {
    /// The fabric for a host of which nobody says what it has: verbs over this device if it can be
    /// opened, and otherwise TCP. Returns the reason, too.
    pub fn of_host(device: &DeviceChoice) -> (Self, String) {
        if !cfg!(feature = "verbs") {
            return (Self::Tcp {}, "this build has no verbs backend".into());
        }
        let verbs = Self::Verbs(device.clone());
        match AnyMedium::open(&verbs) {
            Ok(_) => (verbs, "there is an RDMA device that can be used".into()),
            Err(error) => (Self::Tcp {}, error.to_string()),
        }
    }

    /// The name of the fabric.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Tcp {} => "tcp",
            Self::Verbs(_) => "verbs",
        }
    }
}

/// A fabric that may have been opened.
pub(crate) trait Opened: Medium {
    /// This fabric, if it is the one that was opened.
    fn of(opened: AnyMedium) -> Option<Self>;
}

impl Opened for Tcp {
    fn of(opened: AnyMedium) -> Option<Self> {
        match opened {
            AnyMedium::Tcp(tcp) => Some(tcp),
            #[cfg(feature = "verbs")]
            AnyMedium::Verbs(_) => None,
        }
    }
}

#[cfg(feature = "verbs")]
impl Opened for Card {
    fn of(opened: AnyMedium) -> Option<Self> {
        match opened {
            AnyMedium::Verbs(card) => Some(card),
            AnyMedium::Tcp(_) => None,
        }
    }
}
