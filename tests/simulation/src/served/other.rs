//! An engine of the registry that the tests know nothing of: an ordinary table, and no rules that
//! only its values have.

use std::rc::Rc;

use loch_engines::registry::{EngineId, Options};
use rand_chacha::ChaCha8Rng;

use super::design::Design;
use super::setting::Setting;

struct Other(Setting);

/// A table with default options.
pub fn draw(random: &mut ChaCha8Rng, engine: EngineId) -> Rc<dyn Design> {
    let options: Options = engine.name().parse().expect("it is its name");
    // Workers without sessions SEND their replies.
    let sends = !engine.needs().sessions;
    let mut setting = Setting::draw(random, sends).of(options);
    setting.housekeeping = 0.3;
    Rc::new(Other(setting))
}

impl Design for Other {
    fn setting(&self) -> &Setting {
        &self.0
    }
}
