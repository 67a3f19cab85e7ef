//! What a client of a served table can do on a real card, whatever it claims that it may.
//!
//! Runs where `LOCH_VERBS_TEST` is set; anywhere else it does nothing.

use std::sync::Arc;

use loch_fabric::lanes::block_on;
use loch_fabric::verbs::{Access, Answer, Granted, VerbsEndpoint};
use loch_fabric::{Buf, Fabric, FabricError, RegionId, RemoteAddr};
use serde::Deserialize;

use super::courier::Caller;
use super::network::{Card, Machine};
use super::sessions::Opened;
use crate::TableConfig;
use crate::control::gate::{Admission, Gate, grants};
use crate::control::tests::rig::member_with;
use crate::memory::Member;
use crate::remote::open_device;
use crate::wire::DeviceChoice;

const SLOT: u32 = 2;
const BYTES: [u8; 100] = [0xEE; 100];

/// A client of a node's table that claims rights it was not given.
struct Liar {
    endpoint: VerbsEndpoint,
    _admission: Admission,
}

impl Liar {
    /// `lie` makes of what was granted what the client believes.
    fn connect(
        own: &Member,
        gate: &Arc<dyn Gate>,
        lie: impl Fn(Vec<Granted>) -> Vec<Granted>,
    ) -> Self {
        let device = open_device(&DeviceChoice::default()).unwrap();
        // Its home is another node, so that nothing is done by the processor.
        let elsewhere = member_with(1, 2, own_tables("pilaf")).region().clone();
        let endpoint = VerbsEndpoint::new(device, RegionId(1), elsewhere).unwrap();
        let offer = serde_json::to_value(endpoint.offer(RegionId(0)).unwrap()).unwrap();
        let caller = Caller::Session(Opened { slot: SLOT, incarnation: 7 });
        let (admission, answer) = gate.accept(&offer, &grants(own, 0, 1, caller).unwrap()).unwrap();
        let answer = Answer::deserialize(&answer).unwrap();
        let answer = Answer { grants: lie(answer.grants.clone()), ..answer };
        endpoint.connect(RegionId(0), own.header.region_bytes, &answer).unwrap();
        Self { endpoint, _admission: admission }
    }

    fn write(&self, offset: u64) -> Result<(), FabricError> {
        let buf = Buf::from(BYTES.to_vec());
        block_on(self.endpoint.write(RemoteAddr::new(RegionId(0), offset), buf)).1
    }
}

fn own_tables(engine: &str) -> Vec<TableConfig> {
    vec![TableConfig { engine: engine.into(), ..TableConfig::default() }]
}

fn bytes_at(own: &Member, offset: u64) -> [u8; 100] {
    let mut bytes = [0; 100];
    own.region().copy_out(offset, &mut bytes);
    bytes
}

#[test]
fn a_client_cannot_write_the_table_with_the_keys_it_has() {
    if std::env::var_os("LOCH_VERBS_TEST").is_none() {
        println!("skipped: LOCH_VERBS_TEST is not set");
        return;
    }
    for engine in ["pilaf", "nessie-hybrid"] {
        let own = member_with(0, 2, own_tables(engine));
        let gate = Card::new(open_device(&DeviceChoice::default()).unwrap(), &own).unwrap().gate();
        let parts = own.parts(0).unwrap();
        let requests = parts.requests().unwrap();
        let client = requests.area().client(1, SLOT);
        let slots = requests.base(0).offset() + requests.area().request_slots_of(0, client).start;
        let entry = &own.tables[0];
        // Of pilaf the arena ends the table, of nessie the index begins it.
        let table = if engine == "pilaf" { entry.end() - 4096 } else { entry.offset };
        let before = bytes_at(&own, table);

        let writes_all = |granted: Vec<Granted>| {
            granted.into_iter().map(|it| Granted { access: Access::Full, ..it }).collect()
        };
        let liar = Liar::connect(&own, &gate, writes_all);
        liar.write(slots).unwrap();
        assert_eq!(bytes_at(&own, slots), BYTES, "{engine}: its own request slots");
        let refused = liar.write(table).unwrap_err();
        println!("{engine}: {refused}");
        assert_eq!(bytes_at(&own, table), before, "{engine}: the table is as it was");
        // The connection is at its end, as is everything that the client might still try on it.
        assert_eq!(liar.endpoint.broken(), [RegionId(0)], "{engine}");
        let others = requests.base(0).offset() + requests.area().request_slots_of(0, 0).start;
        // The key of its own slots, for another's.
        let elsewhere = |granted: Vec<Granted>| {
            let own = granted.into_iter().filter(|it| it.access == Access::Full);
            let moved = |it: Granted| Granted {
                offset: others,
                address: it.address - it.offset + others,
                ..it
            };
            own.map(moved).collect()
        };
        let other = Liar::connect(&own, &gate, elsewhere);
        let before = bytes_at(&own, others);
        other.write(others).unwrap_err();
        assert_eq!(bytes_at(&own, others), before, "{engine}: another client's request slots");
        assert_eq!(other.endpoint.broken(), [RegionId(0)], "{engine}");
    }
}
