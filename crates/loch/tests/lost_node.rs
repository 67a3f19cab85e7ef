//! A thread that has operations of one node under way that is lost goes on with everything else:
//! in lanes, and as tasks of another executor.

mod ports;

use std::cell::Cell;
use std::fs::Permissions;
use std::future::{Future, poll_fn};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use loch::lanes::block_on;
use loch::{
    ByteSize, Cluster, ConnectOptions, Error, FabricKind, Node, NodeConfig, Table, TableConfig,
};
use ports::free_address;

/// How long an operation waits for a lost node.
const WAITS: Duration = Duration::from_secs(2);
/// The keys of a table, of which each node has some.
const KEYS: u32 = 64;
/// Operations of the near node that end while one waits for the lost node. They are thousands, if
/// the thread goes on, and one or two if it does not.
const MEANWHILE: u32 = 50;

/// Two machines on the loopback, of which the second one may be away.
struct Machines {
    dir: tempfile::TempDir,
    addresses: Vec<String>,
    engine: &'static str,
}

impl Machines {
    fn new(engine: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "the secret of both machines").unwrap();
        std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
        Self { dir, addresses: vec![free_address(), free_address()], engine }
    }

    fn start(&self, node: usize) -> Node {
        Node::start(NodeConfig {
            name: format!("n{node}"),
            socket: self.dir.path().join(format!("{node}.sock")),
            region: Some(self.dir.path().join(format!("{node}.region"))),
            memory: ByteSize::new(16 << 20),
            fabric: FabricKind::Tcp,
            listen: Some(self.addresses[node].clone()),
            cluster: self.addresses.iter().map(PathBuf::from).collect(),
            secret: Some(self.dir.path().join("secret")),
            tables: vec![TableConfig {
                engine: self.engine.parse().unwrap(),
                ..TableConfig::default()
            }],
            ..NodeConfig::default()
        })
        .unwrap()
    }

    /// A table of a client at the first node.
    fn open(&self, operation_timeout: Duration) -> Table {
        let connect_timeout = Duration::from_secs(60);
        let options = ConnectOptions { connect_timeout, operation_timeout, ..Default::default() };
        let socket = self.dir.path().join("0.sock");
        Cluster::connect_with(socket, options).unwrap().table("default").unwrap()
    }
}

fn key(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

/// Polls a future to its end, as an executor does that is not Loch's.
fn run_as_task<F: Future>(task: F) -> F::Output {
    let mut task = pin!(task);
    loop {
        if let Poll::Ready(output) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
}

/// Does operations of the near node, one after the other, until an operation of the other node
/// ends. Returns how that one ended, and the number of operations meanwhile.
async fn both(table: &Table, lost: u32, near: u32) -> (Error, u32) {
    let (table, ended, meanwhile) = (table.asynch(), Cell::new(None), Cell::new(0));
    let lost_key = key(lost);
    let mut lost = pin!(async { ended.set(table.get(&lost_key).await.err()) });
    let mut others = pin!(async {
        loop {
            table.put(&key(near), b"meanwhile").await.expect("it needs no other node");
            meanwhile.set(meanwhile.get() + 1);
            // Where nothing has to be waited for, it would go on for ever.
            let mut has_yielded = false;
            poll_fn(|_| match std::mem::replace(&mut has_yielded, true) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
        }
    });
    poll_fn(|cx| {
        if lost.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let others: Poll<()> = others.as_mut().poll(cx);
        assert!(others.is_pending());
        Poll::Pending
    })
    .await;
    (ended.take().expect("the node is lost"), meanwhile.get())
}

fn a_thread_goes_on(engine: &'static str) {
    let machines = Machines::new(engine);
    let (_near, far) = (machines.start(0), machines.start(1));
    let [table, other] = [(); 2].map(|()| machines.open(WAITS));
    for number in 0..KEYS {
        table.put(&key(number), b"value").unwrap();
    }
    far.stop();
    let looks = machines.open(Duration::from_millis(100));
    let is_lost = |number: &u32| looks.get(&key(*number)).is_err();
    let (lost, near): (Vec<u32>, Vec<u32>) = (0..KEYS).partition(is_lost);
    assert!(!lost.is_empty() && !near.is_empty(), "{engine}: each node has some of the keys");

    for (executor, table) in [(true, &table), (false, &other)] {
        let began = Instant::now();
        let (error, meanwhile) = match executor {
            true => block_on(both(table, lost[0], near[0])),
            false => run_as_task(both(table, lost[0], near[0])),
        };
        let took = began.elapsed();
        assert!(matches!(error, Error::NodeUnreachable { .. }), "{engine}: {error}");
        assert!(took >= WAITS, "{engine}: it waits for a node that may be about to come back");
        assert!(meanwhile >= MEANWHILE, "{engine}: {meanwhile} operations in {took:?}");
    }

    let _far = machines.start(1);
    let until = Instant::now() + Duration::from_secs(60);
    while let Err(error) = table.put(&key(lost[0]), b"again") {
        assert!(Instant::now() < until, "{engine}: the node is back: {error}");
    }
    let found = table.get(&key(lost[0])).unwrap().expect("it was put");
    assert_eq!(&found[..], b"again");
}

#[test]
fn a_thread_goes_on_while_its_table_of_nessie_lacks_a_node() {
    a_thread_goes_on("nessie");
}

#[test]
fn a_thread_goes_on_while_its_table_of_herd_lacks_a_node() {
    a_thread_goes_on("herd");
}

/// To scan such a table, or to ask for its use, takes another client, or the workers.
#[test]
fn a_thread_goes_on_while_it_looks_at_a_table_that_lacks_a_node() {
    for engine in ["nessie", "nessie-server", "herd"] {
        let machines = Machines::new(engine);
        let (_near, far) = (machines.start(0), machines.start(1));
        let table = machines.open(WAITS);
        table.put(b"key", b"value").unwrap();
        far.stop();
        let error = block_on(table.asynch().usage()).expect_err("a node is lost");
        assert!(matches!(error, Error::NodeUnreachable { .. }), "{engine}: {error}");
        let scanned = table.scan().collect::<Result<Vec<_>, _>>();
        let error = scanned.expect_err("a node is lost");
        assert!(matches!(error, Error::NodeUnreachable { .. }), "{engine}: {error}");
    }
}
