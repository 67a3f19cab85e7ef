//! The verbs over shared memory.

use std::sync::Arc;

use loch_fabric::shm::{Region, RegionError, ShmEndpoint};

use super::Trial;
use super::verb::{HOME, REGION_BYTES, THERE, VERBS, Verb};

/// Tries every verb over shared memory.
pub fn over_shm() -> Vec<Trial> {
    VERBS.into_iter().map(over_shm_one).collect()
}

fn over_shm_one(verb: Verb) -> Trial {
    Trial::of("shm", verb.name(), move || {
        let region = Arc::new(Region::anonymous(REGION_BYTES)?);
        let mut endpoint = ShmEndpoint::new(HOME);
        endpoint.attach(THERE, region.clone());
        Ok::<_, RegionError>(verb.try_out(&endpoint, &region))
    })
}
