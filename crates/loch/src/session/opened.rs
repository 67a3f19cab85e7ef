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

/// The fabric that a node was given, or that was chosen for it.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    /// The fabric.
    pub medium: MediumChoice,
    /// Why it is that one.
    pub reason: String,
}

impl Chosen {
    /// Opens the configured fabric. Without one it opens verbs, if the host has a device that can
    /// be opened, and TCP otherwise.
    ///
    /// # Errors
    /// The errors of [`AnyMedium::open`], for a configured fabric.
    pub fn open(
        configured: Option<MediumChoice>,
        device: &DeviceChoice,
    ) -> Result<(Self, AnyMedium)> {
        if let Some(medium) = configured {
            let opened = AnyMedium::open(&medium)?;
            return Ok((Self { medium, reason: "it is configured".into() }, opened));
        }
        let reason = if cfg!(feature = "verbs") {
            let medium = MediumChoice::Verbs(device.clone());
            match AnyMedium::open(&medium) {
                Ok(opened) => {
                    let reason = "there is an RDMA device that can be used".into();
                    return Ok((Self { medium, reason }, opened));
                }
                Err(error) => error.to_string(),
            }
        } else {
            "this build has no verbs backend".into()
        };
        Ok((Self { medium: MediumChoice::Tcp {}, reason }, AnyMedium::Tcp(Tcp)))
    }
}

impl MediumChoice {
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
