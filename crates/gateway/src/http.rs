//! `/metrics`, for Prometheus.

use std::collections::VecDeque;
use std::future::{Future, IntoFuture};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

use crate::context::Shared;
use crate::limits::{HTTP_CLIENT_TIME, HTTP_CLIENTS_MAX};
use crate::metrics;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A server of its own, in a thread of its own: it has nothing to do with the clients' connections.
pub(crate) struct Http {
    address: SocketAddr,
    /// The server ends when this is gone.
    running: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Http {
    /// Starts the server. It listens when this returns.
    pub fn start(address: SocketAddr, shared: &Arc<Shared>) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (running, ended) = oneshot::channel();
        let pages = pages(Arc::clone(shared));
        let serve = async move {
            let inner = tokio::net::TcpListener::from_std(listener)?;
            let listener = Few { inner, open: VecDeque::new() };
            tokio::select! {
                served = axum::serve(listener, pages).into_future() => served,
                _ = ended => Ok(()),
            }
        };
        let run = move || {
            if let Err(error) = runtime.block_on(serve) {
                tracing::error!(%error, "/metrics is not served any more");
            }
        };
        let thread = std::thread::Builder::new().name("loch-gateway-http".to_owned()).spawn(run)?;
        Ok(Self { address, running: Some(running), thread: Some(thread) })
    }

    /// Where it listens, with the port that the system has chosen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        drop(self.running.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of /metrics has panicked");
        }
    }
}

/// A listener with few connections at a time, none of which lasts: they are as good as any client's
/// descriptors, and nobody has given a password. The oldest one gives way to one more, so those
/// that ask for nothing hold up nobody.
struct Few {
    inner: tokio::net::TcpListener,
    /// The connections, the oldest first. One whose sender is gone ends.
    open: VecDeque<oneshot::Sender<()>>,
}

impl Listener for Few {
    type Io = Brief;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Brief, SocketAddr) {
        // It waits by itself if there are no descriptors.
        let (stream, from) = Listener::accept(&mut self.inner).await;
        let ends = Box::pin(sleep(HTTP_CLIENT_TIME));
        let (place, gives_way) = oneshot::channel();
        self.open.retain(|open| !open.is_closed());
        if self.open.len() == HTTP_CLIENTS_MAX {
            self.open.pop_front();
        }
        self.open.push_back(place);
        (Brief { stream, ends, gives_way, has_ended: false }, from)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

/// A connection that says after some time that nothing more comes.
struct Brief {
    stream: TcpStream,
    ends: Pin<Box<Sleep>>,
    gives_way: oneshot::Receiver<()>,
    /// Whether it was told to end. Nothing else is asked then: a receiver answers once only.
    has_ended: bool,
}

impl Brief {
    /// Whether it has to end.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.has_ended = self.has_ended
            || Pin::new(&mut self.gives_way).poll(cx).is_ready()
            || self.ends.as_mut().poll(cx).is_ready();
        if self.has_ended { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl AsyncRead for Brief {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.poll_end(cx) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending => Pin::new(&mut self.stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Brief {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(cx, bytes) {
            // Its client does not take the answer.
            Poll::Pending if self.poll_end(cx).is_ready() => {
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            written => written,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn pages(shared: Arc<Shared>) -> Router {
    let metrics = move || {
        let text = metrics::text(&shared).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR);
        std::future::ready(text.map(|text| ([(CONTENT_TYPE, OPEN_METRICS)], text)))
    };
    Router::new().route("/metrics", get(metrics))
}
