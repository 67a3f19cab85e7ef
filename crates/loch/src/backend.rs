//! A table's engine over the backend that the cluster has. A match at the public surface; below it
//! everything is compiled for one backend.

use loch_engines::EngineError;
use loch_engines::nessie::Client;
use loch_fabric::shm::ShmEndpoint;

use crate::Error;
#[cfg(feature = "verbs")]
use crate::remote::Remote;

/// The engine of a table. Shared memory is the short way, so its client is not boxed.
#[cfg_attr(feature = "verbs", allow(clippy::large_enum_variant))]
pub(crate) enum Backend {
    /// All memory of the cluster is mapped.
    Shm(Client<ShmEndpoint>),
    /// The home node's memory is mapped; that of others is reached by connections, which may break.
    #[cfg(feature = "verbs")]
    Verbs(Box<Remote>),
}

impl Backend {
    /// What this backend knows better about an error than the engine.
    pub fn explain(&self, error: &EngineError) -> Option<Error> {
        match (self, error) {
            #[cfg(feature = "verbs")]
            (Self::Verbs(remote), EngineError::Fabric(error)) => remote.explain(*error),
            _ => None,
        }
    }
}

/// An expression with the engine, on whatever backend it is.
macro_rules! with_client {
    ($table:expr, $client:ident => $with:expr) => {
        match $table.backend() {
            $crate::backend::Backend::Shm($client) => $with,
            #[cfg(feature = "verbs")]
            $crate::backend::Backend::Verbs(remote) => {
                let $client = remote.client();
                $with
            }
        }
    };
}
pub(crate) use with_client;

/// Awaits an operation of the engine. Where connections may break it is begun again, after one that
/// it found broken was made again: such an error says that nothing was changed. Of an operation
/// that changes nothing (`read`) no outcome is unknown.
macro_rules! operate {
    (read $table:expr, $client:ident => $operation:expr) => {
        $crate::backend::operate!(@ $table, $client => $operation, $crate::remote::of_read)
    };
    ($table:expr, $client:ident => $operation:expr) => {
        $crate::backend::operate!(@ $table, $client => $operation, std::convert::identity)
    };
    (@ $table:expr, $client:ident => $operation:expr, $meaning:path) => {
        match $table.backend() {
            $crate::backend::Backend::Shm($client) => $operation.await,
            #[cfg(feature = "verbs")]
            // Boxed, so that on shared memory the future is as small as if there were no other way.
            $crate::backend::Backend::Verbs(remote) => {
                let work = async {
                    let mut attempts = remote.begin();
                    loop {
                        let $client = remote.client();
                        let done = $operation.await.map_err($meaning);
                        if !remote.goes_on(&mut attempts, done.as_ref().err()).await {
                            break done;
                        }
                    }
                };
                Box::pin(work).await
            }
        }
    };
}
pub(crate) use operate;
