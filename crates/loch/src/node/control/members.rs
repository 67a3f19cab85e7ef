//! The nodes of the cluster, as far as this node knows them.

use std::sync::{Mutex, MutexGuard};

use zerocopy::IntoBytes;

use super::channel::LinkError;
use super::messages::{Hello, NodeState};
use crate::Result;
use crate::layout::memory::{Member, check_member};
use crate::session::wire::{Code, MemberFacts, Refused, Reply};

/// The nodes by number.
pub(crate) struct Members {
    own: Member,
    /// Names this process among all processes that ever were this node.
    process: u64,
    /// The fabric of all nodes.
    fabric: &'static str,
    addresses: Vec<String>,
    nodes: Mutex<Vec<Known>>,
}

#[derive(Clone, Default)]
struct Known {
    /// The node's region, as its last hello described it.
    member: Option<Member>,
    up: bool,
    /// What it has told last.
    state: NodeState,
    /// Why the node is not up.
    why: Option<LinkError>,
}

impl Members {
    /// Makes the list; only `own` is known.
    pub fn new(own: Member, process: u64, fabric: &'static str, addresses: Vec<String>) -> Self {
        let mut nodes = vec![Known::default(); addresses.len()];
        let known = Known { member: Some(own.clone()), up: true, ..Known::default() };
        nodes[own.header.node as usize] = known;
        Self { own, process, fabric, addresses, nodes: Mutex::new(nodes) }
    }

    /// This node's number.
    pub fn own(&self) -> usize {
        self.own.header.node as usize
    }

    /// A node's address.
    pub fn address(&self, node: usize) -> &str {
        &self.addresses[node]
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// The hello of this node.
    pub(super) fn hello(&self) -> Hello {
        Hello {
            node: self.own.header.node,
            nodes: self.own.header.nodes,
            name: self.own.name.clone(),
            process: self.process,
            fabric: self.fabric.into(),
            header: hex(self.own.header.as_bytes()),
            directory: hex(self.own.tables.as_bytes()),
        }
    }

    /// Checks the hello of a node. `expected` is the node that was dialed.
    ///
    /// # Errors
    /// [`LinkError::Misfit`] says what does not fit.
    pub(super) fn check(&self, hello: &Hello, expected: Option<usize>) -> Result<usize, LinkError> {
        let node = hello.node as usize;
        let misfit = |text: String| Err(LinkError::Misfit(text));
        if node >= self.len() || node == self.own() || expected.is_some_and(|it| it != node) {
            return misfit(format!(
                "it says that it is node {node} of {}: give all nodes the same `cluster` list",
                hello.nodes
            ));
        }
        if hello.fabric != self.fabric {
            return misfit(format!(
                "its fabric is \"{}\", that of this node \"{}\": give all nodes the same `fabric`",
                hello.fabric, self.fabric
            ));
        }
        match self.parse(hello, node) {
            Ok(_) => Ok(node),
            Err(error) => misfit(error.to_string()),
        }
    }

    fn parse(&self, hello: &Hello, node: usize) -> Result<Member> {
        let address = self.addresses[node].as_str();
        let told = Member::told(&hello.name, address.as_ref(), &hello.header, &hello.directory)?;
        check_member(&self.own, &told, node, self.len())?;
        Ok(told)
    }

    /// A node whose hello was checked is up.
    pub(super) fn met(&self, node: usize, hello: &Hello) {
        self.meet(node, hello);
        let member = self.parse(hello, node).ok();
        let known = &mut self.nodes()[node];
        if known.up {
            return;
        }
        tracing::info!(node, name = hello.name, "a node of the cluster is up");
        // It may have a new region.
        let state = NodeState { region_deleted: false, ..known.state };
        *known = Known { member, up: true, state, why: None };
    }

    /// From now on clients of a node whose hello was checked may be let in.
    pub(super) fn meet(&self, node: usize, hello: &Hello) {
        if let Ok(member) = self.parse(hello, node) {
            self.own.meet(&member);
        }
    }

    /// A node is not up.
    pub(super) fn lost(&self, node: usize, why: LinkError) {
        let address = self.address(node);
        let known = &mut self.nodes()[node];
        if known.up || known.why.as_ref() != Some(&why) {
            tracing::warn!(node, address, %why, "a node of the cluster cannot be reached");
        }
        (known.up, known.why) = (false, Some(why));
    }

    /// A node has told its state.
    pub(super) fn heard(&self, node: usize, state: NodeState) {
        self.nodes()[node].state = state;
    }

    /// What this node tells the others of itself.
    pub(super) fn own_state(&self) -> NodeState {
        NodeState {
            sessions_taken: self.own.client_sessions_taken().unwrap_or(0),
            region_deleted: self.own.is_deleted(),
        }
    }

    /// The nodes that are up, as far as is known.
    pub fn up(&self) -> Vec<Option<Member>> {
        let nodes = self.nodes();
        nodes.iter().map(|known| known.member.clone().filter(|_| known.up)).collect()
    }

    /// The nodes of which something is known, whether they are up or not.
    pub fn known(&self) -> Vec<Option<Member>> {
        self.nodes().iter().map(|known| known.member.clone()).collect()
    }

    /// Returns whether a node is known to be up.
    #[cfg(feature = "verbs")]
    pub fn is_up(&self, node: usize) -> bool {
        self.nodes()[node].up
    }

    /// The facts of a node for a client.
    pub fn facts(&self, node: u16) -> Reply {
        let nodes = self.nodes();
        let Some(known) = nodes.get(node as usize) else {
            return Reply::Refused(Refused::new(Code::Other, format!("there is no node {node}")));
        };
        let Some(member) = &known.member else {
            return Reply::Refused(self.away(node as usize, known));
        };
        let taken = member.client_sessions_taken();
        Reply::Member(MemberFacts {
            name: member.name.clone(),
            identity: member.header.identity,
            header: hex(member.header.as_bytes()),
            directory: hex(member.tables.as_bytes()),
            up: known.up,
            sessions_taken: taken.unwrap_or(known.state.sessions_taken),
            region_deleted: member.is_deleted() || known.state.region_deleted,
        })
    }

    /// The refusal that says why a node cannot be reached.
    pub(super) fn why_away(&self, node: usize) -> Refused {
        let nodes = self.nodes();
        self.away(node, &nodes[node])
    }

    fn away(&self, node: usize, known: &Known) -> Refused {
        let code = match &known.why {
            Some(LinkError::Misfit(_)) => Code::Misfit,
            Some(
                LinkError::Secret
                | LinkError::Kind { .. }
                | LinkError::Certificate(_)
                | LinkError::Impostor(_),
            ) => Code::Untrusted,
            Some(LinkError::Protocol { .. }) => Code::Release,
            _ => Code::Away,
        };
        let why = known.why.as_ref().map_or("it was not tried yet".into(), LinkError::to_string);
        Refused::new(code, why).of_node(node, self.address(node))
    }

    fn nodes(&self) -> MutexGuard<'_, Vec<Known>> {
        self.nodes.lock().expect("nothing panics while it is held")
    }
}

/// Bytes in hexadecimal.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
