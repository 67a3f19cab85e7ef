//! The verbs over shared memory.

use std::sync::Arc;

use loch_fabric::shm::{Region, ShmEndpoint};

use super::verb::{HOME, REGION_BYTES, THERE, VERBS, Verb};
use super::{Trial, watched};

const FABRIC: &str = "shm";

/// Tries every verb over shared memory.
pub fn over_shm() -> Vec<Trial> {
    VERBS.into_iter().map(over_shm_one).collect()
}

fn over_shm_one(verb: Verb) -> Trial {
    let (name, bytes) = verb.name();
    let tried = watched(name, move || {
        let region = Region::anonymous(REGION_BYTES).map_err(|error| error.to_string())?;
        let region = Arc::new(region);
        let mut endpoint = ShmEndpoint::new(HOME);
        endpoint.attach(THERE, region.clone());
        Ok(verb.try_out(&endpoint, &region))
    });
    match tried.and_then(|tried| tried) {
        Ok(trying) => trying.ended(FABRIC, (name, bytes)),
        Err(error) => Trial::failed(FABRIC, (name, bytes), error),
    }
}
