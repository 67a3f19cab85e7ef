//! Tables over a fabric between machines.

use std::marker::PhantomData;
use std::sync::Arc;

use loch_engines::EngineError;
use loch_engines::net::{Connect, Net};
use loch_fabric::{FabricError, RemoteAddr};

use super::attachment::Attachment;
use super::connector::{Attempts, Connector};
use super::net::{Network, OpenParams};
use super::nodes::Nodes;
use super::operations::Operations;
use super::table_client::TableClient;
use crate::limits::RESEND_NETWORK_US;
use crate::session::endpoint::Yielding;
use crate::session::medium::{Linked, Medium};
use crate::session::opened::{AnyMedium, Opened};
use crate::session::tcp::Tcp;
#[cfg(feature = "verbs")]
use crate::session::verbs::Card;
use crate::{Error, Result};

/// The network of a client whose nodes are on other hosts, except for its home node.
pub(crate) struct Remote<M>(PhantomData<M>);

/// The endpoint of a client.
type ClientEndpoint<M> = Linked<M, Arc<Connector<M>>>;

impl<M: Medium> Net for Remote<M> {
    type Direct = ClientEndpoint<M>;
    type Waiting = Yielding<ClientEndpoint<M>, Option<M::Messages>>;

    fn direct(waiting: &Self::Waiting) -> &ClientEndpoint<M> {
        waiting.endpoint()
    }
}

impl<M: Opened> Network for Remote<M> {
    const RESEND_US: u64 = RESEND_NETWORK_US;
    const BREAKS: bool = true;
    type Attempts = Attempts;

    fn connector(params: OpenParams<'_>) -> Result<impl Connect<Self, Error = Error>> {
        let attachment = attachment_of(&params);
        let medium = M::of(attachment.medium()?).expect("it is the one that was opened");
        let (endpoint, links) = Connector::open(medium, attachment.clone(), params)?;
        Ok(RemoteConnect { endpoint: Linked::new(endpoint, links) })
    }

    fn begin(endpoint: &ClientEndpoint<M>) -> Attempts {
        endpoint.links().mend(endpoint.endpoint());
        Attempts::default()
    }

    async fn goes_on(
        endpoint: &ClientEndpoint<M>,
        attempts: &mut Attempts,
        error: Option<&EngineError>,
    ) -> bool {
        endpoint.links().goes_on(endpoint.endpoint(), attempts, error).await
    }

    fn bytes_carried(endpoint: &ClientEndpoint<M>) -> Option<[u64; 2]> {
        M::bytes_carried(endpoint.endpoint())
    }

    fn explain(endpoint: &ClientEndpoint<M>, error: FabricError) -> Option<Error> {
        endpoint.links().explain(error)
    }

    /// The connections show it: to ask the home node would have the thread wait.
    fn missing_node(endpoint: &ClientEndpoint<M>, _: &Nodes) -> Option<Error> {
        endpoint.links().missing_node(endpoint.endpoint())
    }
}

/// The endpoint of a client, connected.
struct RemoteConnect<M: Medium> {
    endpoint: ClientEndpoint<M>,
}

impl<M: Medium> Connect<Remote<M>> for RemoteConnect<M> {
    type Error = Error;

    fn direct(self) -> Result<ClientEndpoint<M>> {
        Ok(self.endpoint)
    }

    fn waiting(self, mailbox: Option<RemoteAddr>) -> Result<<Remote<M> as Net>::Waiting> {
        let open = |_| self.endpoint.links().messages(self.endpoint.endpoint());
        let messages = mailbox.map(open).transpose()?;
        Ok(Yielding::new(self.endpoint, messages))
    }
}

/// Opens a table over a fabric between machines.
///
/// # Errors
/// As [`Connector::open`], and [`Error::SessionsExhausted`].
pub(crate) fn open_table(params: OpenParams<'_>) -> Result<Box<dyn Operations>> {
    Ok(match attachment_of(&params).medium()? {
        AnyMedium::Tcp(_) => Box::new(TableClient::<Remote<Tcp>>::open(params)?),
        #[cfg(feature = "verbs")]
        AnyMedium::Verbs(_) => Box::new(TableClient::<Remote<Card>>::open(params)?),
    })
}

fn attachment_of<'a>(params: &OpenParams<'a>) -> &'a Arc<Attachment> {
    let Nodes::Attached(attachment) = params.nodes else {
        unreachable!("nodes inside this process are not remote");
    };
    attachment
}
