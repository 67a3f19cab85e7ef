//! Starting and stopping a gateway.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use loch::{Cluster, RateLimit, Table};
use rustix::process::{Resource, getrlimit};

use crate::address::Address;
use crate::clients::Clients;
use crate::context::{Mailbox, Shared};
use crate::cursors::Cursors;
use crate::error::Error;
use crate::http::Http;
use crate::limits::{CLIENTS_MAX, OTHER_DESCRIPTORS};
use crate::looks::Looks;
use crate::password::{Password, PasswordSource};
use crate::protocol::Protocol;
use crate::slowlog::Slowlog;
use crate::stream::Listener;
use crate::thread;
use crate::tls::Certificate;
use crate::uses::Uses;

/// Commands of Redis that take longer are kept: as in Redis.
const SLOWER_THAN: Duration = Duration::from_millis(10);
/// The most threads of a gateway.
const THREADS_MAX: usize = 256;

/// How a gateway is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayConfig {
    /// The table whose keys clients see.
    pub table: String,
    /// Where clients of Redis connect.
    pub resp: Vec<Address>,
    /// Where clients of memcached connect.
    pub memcached: Vec<Address>,
    /// Where `/metrics` is served, to everybody who can connect.
    pub http: Vec<SocketAddr>,
    /// The password that clients have to give. Without one nobody needs a password.
    pub password: Option<PasswordSource>,
    /// Whether other hosts may reach a gateway that has no password. Otherwise all addresses have
    /// to be local then.
    pub is_open: bool,
    /// The files of a certificate and of its key, in PEM, for clients that come over TCP: they have
    /// to speak TLS 1.3 then.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Commands of Redis that take longer are kept for `SLOWLOG`; `None`: nothing is kept.
    pub slower_than: Option<Duration>,
    /// Threads that serve clients, each of which opens the table for itself.
    pub threads: usize,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            table: "default".to_owned(),
            resp: Vec::new(),
            memcached: Vec::new(),
            http: Vec::new(),
            password: None,
            is_open: false,
            tls: None,
            slower_than: Some(SLOWER_THAN),
            threads: 1,
        }
    }
}

/// A gateway that runs, in threads of this process.
///
/// It is stopped when it is dropped.
pub struct Gateway {
    shared: Arc<Shared>,
    http: Vec<Http>,
    threads: Vec<JoinHandle<()>>,
    /// The thread that looks at the table.
    looks: Option<JoinHandle<()>>,
}

impl Gateway {
    /// Starts a gateway to a table of the cluster. It listens when this returns.
    ///
    /// # Errors
    /// [`Error::Usage`] without an address; [`Error::Open`] if other hosts could use it without a
    /// password; [`Error::Listen`], [`Error::Password`]; [`Error::Cluster`] if the table cannot be
    /// opened as often as there are threads.
    pub fn start(cluster: Cluster, config: GatewayConfig) -> Result<Self, Error> {
        let addresses = || config.resp.iter().chain(&config.memcached);
        if addresses().next().is_none() {
            return Err(Error::Usage("the gateway listens nowhere: give an address"));
        }
        if !(1..=THREADS_MAX).contains(&config.threads) {
            return Err(Error::Usage("a gateway has 1 to 256 threads (`--threads`)"));
        }
        if let Some(open) = addresses().find(|address| !address.is_local())
            && config.password.is_none()
        {
            if !config.is_open {
                return Err(Error::Open { address: open.clone() });
            }
            tracing::warn!(address = %open, "everybody who reaches it can read and change all values");
        }
        let password = config.password.as_ref().map(Password::read).transpose()?;
        let files = config.tls.as_ref();
        let certificate = files.map(|(chain, key)| Certificate::read(chain, key)).transpose()?;
        no_address_twice(&config)?;
        let system = |what| move |cause| Error::System { what, cause };
        let mut listeners = Vec::new();
        for (addresses, protocol) in
            [(&config.resp, Protocol::Resp), (&config.memcached, Protocol::Memcached)]
        {
            for address in addresses {
                listeners.push((Listener::at(address, certificate.as_ref())?, protocol));
            }
        }
        let mailboxes = (0..config.threads).map(|_| Mailbox::new()).collect::<Result<_, _>>();
        let tables = cluster.info().tables;
        let table = tables.iter().find(|table| table.name == config.table);
        let shared = Arc::new(Shared {
            value_bytes_max: table.map_or(0, |table| table.value_bytes_max),
            table_bytes: table.map_or(0, |table| table.index_bytes + table.data_bytes),
            evicts: table.is_some_and(|table| table.evicts),
            cluster,
            table: config.table,
            password,
            listeners,
            clients: Clients::new(clients_max(config.threads + config.http.len().max(1))),
            cursors: Cursors::default(),
            threads: mailboxes.map_err(system("cannot make an event"))?,
            copies: Arc::default(),
            work: Arc::default(),
            guesses: RateLimit::default(),
            http_requests: RateLimit::default(),
            lists: Arc::default(),
            slowlog: Slowlog::new(config.slower_than),
            uses: Uses::default(),
            looks: Looks::default(),
            started: Instant::now(),
            is_stopping: AtomicBool::new(false),
            accepted: AtomicUsize::new(0),
            flushes: Mutex::default(),
        });
        // From here on its listeners close if it does not start.
        let mut gateway = Self { shared, http: Vec::new(), threads: Vec::new(), looks: None };
        for address in config.http {
            let listen = |cause| Error::Listen { address: Address::Tcp(address), cause };
            gateway.http.push(Http::start(address, &gateway.shared).map_err(listen)?);
        }
        gateway.start_threads(config.threads)?;
        Ok(gateway)
    }

    fn start_threads(&mut self, count: usize) -> Result<(), Error> {
        self.looks = Some(self.start_thread("loch-usage".into(), |shared, table| {
            shared.looks.run(table, |thread| shared.threads[thread].wake());
        })?);
        for number in 0..count {
            let serve = move |shared: &_, table: &_| {
                let served = thread::serve(shared, number, table);
                served.expect("the system keeps a poll set and its descriptors");
            };
            let thread = self.start_thread(format!("loch-gateway-{number}"), serve)?;
            self.threads.push(thread);
        }
        Ok(())
    }

    /// Starts a thread with a table of its own, and waits until it has opened the table.
    fn start_thread(
        &self,
        name: String,
        work: impl FnOnce(&Arc<Shared>, &Table) + Send + 'static,
    ) -> Result<JoinHandle<()>, Error> {
        let shared = Arc::clone(&self.shared);
        let (opened, is_open) = mpsc::channel();
        let run = move || match shared.cluster.table(&shared.table) {
            Err(error) => drop(opened.send(Err(error))),
            Ok(table) => {
                // The starter waits for it.
                let _ = opened.send(Ok(()));
                work(&shared, &table);
            }
        };
        let what = "cannot start a thread";
        let thread = std::thread::Builder::new().name(name).spawn(run);
        let thread = thread.map_err(|cause| Error::System { what, cause })?;
        match is_open.recv() {
            Ok(opened) => opened.map(|()| thread).map_err(Error::Cluster),
            Err(_) => Err(Error::System { what, cause: std::io::ErrorKind::Other.into() }),
        }
    }

    fn addresses(&self, of: Protocol) -> Vec<Address> {
        let listeners = self.shared.listeners.iter();
        let of = listeners.filter(|(_, protocol)| *protocol == of);
        of.map(|(listener, _)| listener.address()).collect()
    }

    /// The cluster to which it is a client.
    pub fn cluster(&self) -> &Cluster {
        &self.shared.cluster
    }

    /// Where clients of Redis connect, with the ports that the system has chosen.
    pub fn resp(&self) -> Vec<Address> {
        self.addresses(Protocol::Resp)
    }

    /// Where clients of memcached connect.
    pub fn memcached(&self) -> Vec<Address> {
        self.addresses(Protocol::Memcached)
    }

    /// Where `/metrics` is served, with the ports that the system has chosen.
    pub fn http(&self) -> Vec<SocketAddr> {
        self.http.iter().map(Http::address).collect()
    }

    /// Accepts nobody any more, answers all requests that have come, and ends.
    pub fn stop(self) {}
}

/// How many clients a gateway can have beside its threads and servers of `/metrics`: each needs a
/// descriptor.
fn clients_max(others: usize) -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |most| most as usize);
    let most = descriptors.saturating_sub(OTHER_DESCRIPTORS * others).max(1);
    if most < CLIENTS_MAX {
        tracing::warn!(clients = most, descriptors, "few clients can connect: raise `ulimit -n`");
    }
    most.min(CLIENTS_MAX)
}

/// Refuses an address that is given twice. The system may choose a port more than once.
fn no_address_twice(config: &GatewayConfig) -> Result<(), Error> {
    let http: Vec<_> = config.http.iter().copied().map(Address::Tcp).collect();
    let mut addresses: Vec<&Address> =
        config.resp.iter().chain(&config.memcached).chain(&http).collect();
    addresses.retain(|address| !matches!(address, Address::Tcp(tcp) if tcp.port() == 0));
    while let Some(address) = addresses.pop() {
        if addresses.contains(&address) {
            return Err(Error::Twice { address: address.clone() });
        }
    }
    Ok(())
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        self.shared.listeners.iter().for_each(|(listener, _)| listener.close());
        self.shared.threads.iter().for_each(Mailbox::wake);
        let end = |thread: JoinHandle<()>| {
            if thread.join().is_err() {
                tracing::error!("a thread of the gateway has panicked");
            }
        };
        self.threads.drain(..).for_each(end);
        // Until here, clients may have waited for a look.
        self.shared.looks.stop();
        self.looks.take().into_iter().for_each(end);
    }
}
