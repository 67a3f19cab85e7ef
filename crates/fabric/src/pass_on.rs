//! Endpoints that wrap another endpoint.

/// Passes methods of [`Fabric`](crate::Fabric), [`Messages`](crate::Messages) and
/// [`UnreliableWrites`](crate::UnreliableWrites) on to a field of the endpoint:
/// `pass_on!(load store => field);` inside the `impl`. The endpoint implements the other methods
/// itself, or has the trait's defaults.
///
/// ```
/// use loch_fabric::{Fabric, FabricError, RegionId, RemoteAddr, pass_on, shm::ShmEndpoint};
///
/// /// An endpoint that stores nothing.
/// struct Idle {
///     inner: ShmEndpoint,
/// }
///
/// impl Fabric for Idle {
///     pass_on!(
///         caps counters read_words read_bucket read chase read_many read_word_and_bytes
///         compare_swap compare_swap_many fetch_add write_unsignaled write is_mapped store_before
///         store_after announce load load_bytes reload will_read will_store raw posted is_settled
///         now_us wall_ms random pause poll_wait yield_now => inner
///     );
///
///     fn store(&self, _: RemoteAddr, _: &[&[u8]]) -> Result<(), FabricError> {
///         Ok(())
///     }
/// }
///
/// let idle = Idle { inner: ShmEndpoint::new(RegionId(0)) };
/// let nowhere = RemoteAddr::new(RegionId(7), 0);
/// assert!(idle.load(nowhere).is_err() && idle.store(nowhere, &[b"x"]).is_ok());
/// ```
#[macro_export]
macro_rules! pass_on {
    ($($method:ident)+ => $field:ident) => { $($crate::pass_on!(@ $method $field);)+ };
    (@ read_words $to:ident) => {
        #[inline]
        fn read_words<'a>(
            &'a self,
            at: &'a [$crate::RemoteAddr],
            out: &'a mut [u64],
        ) -> impl ::std::future::Future<Output = $crate::Result<()>> + 'a {
            self.$to.read_words(at, out)
        }
    };
    (@ chase $to:ident) => {
        #[inline]
        fn chase<'a>(
            &'a self,
            count: usize,
            words: usize,
            len: usize,
            buf: &'a mut $crate::Buf,
            chase: &'a mut impl $crate::Chase,
        ) -> impl ::std::future::Future<Output = $crate::Result<()>> + 'a {
            self.$to.chase(count, words, len, buf, chase)
        }
    };
    (@ read_many $to:ident) => {
        #[inline]
        fn read_many<'a>(
            &'a self,
            reads: &'a [($crate::RemoteAddr, usize)],
            buf: $crate::Buf,
        ) -> impl ::std::future::Future<Output = ($crate::Buf, $crate::Result<()>)> + 'a {
            self.$to.read_many(reads, buf)
        }
    };
    (@ compare_swap_many $to:ident) => {
        #[inline]
        fn compare_swap_many<'a>(
            &'a self,
            swaps: &'a [$crate::Swap],
            seen: impl FnMut(usize, $crate::Result<u64>) + 'a,
        ) -> impl ::std::future::Future<Output = ()> + 'a {
            self.$to.compare_swap_many(swaps, seen)
        }
    };
    (@ caps $to:ident) => { $crate::pass_on!(# $to caps() -> $crate::Caps); };
    (@ counters $to:ident) => { $crate::pass_on!(# $to counters() -> &$crate::Counters); };
    (@ read_bucket $to:ident) => {
        $crate::pass_on!(# $to async read_bucket(at: $crate::RemoteAddr, words: usize)
            -> $crate::Result<[u64; $crate::limits::BUCKET_WORDS_MAX]>);
    };
    (@ read $to:ident) => {
        $crate::pass_on!(# $to async read(at: $crate::RemoteAddr, len: usize, buf: $crate::Buf)
            -> ($crate::Buf, $crate::Result<()>));
    };
    (@ read_word_and_bytes $to:ident) => {
        $crate::pass_on!(# $to async read_word_and_bytes(
            word: $crate::RemoteAddr, at: $crate::RemoteAddr, len: usize, buf: $crate::Buf
        ) -> ($crate::Buf, $crate::Result<u64>));
    };
    (@ compare_swap $to:ident) => {
        $crate::pass_on!(# $to async compare_swap(at: $crate::RemoteAddr, expect: u64, new: u64)
            -> $crate::Result<u64>);
    };
    (@ fetch_add $to:ident) => {
        $crate::pass_on!(# $to async fetch_add(at: $crate::RemoteAddr, add: u64)
            -> $crate::Result<u64>);
    };
    (@ write_unsignaled $to:ident) => {
        $crate::pass_on!(# $to write_unsignaled(at: $crate::RemoteAddr, bytes: &[u8])
            -> $crate::Result<()>);
    };
    (@ write $to:ident) => {
        $crate::pass_on!(# $to async write(at: $crate::RemoteAddr, buf: $crate::Buf)
            -> ($crate::Buf, $crate::Result<()>));
    };
    (@ is_mapped $to:ident) => {
        $crate::pass_on!(# $to is_mapped(region: $crate::RegionId) -> bool);
    };
    (@ is_far $to:ident) => { $crate::pass_on!(# $to is_far() -> bool); };
    (@ store $to:ident) => {
        $crate::pass_on!(# $to store(at: $crate::RemoteAddr, parts: &[&[u8]])
            -> $crate::Result<()>);
    };
    (@ store_before $to:ident) => {
        $crate::pass_on!(# $to store_before(at: $crate::RemoteAddr, word: u64)
            -> $crate::Result<()>);
    };
    (@ store_after $to:ident) => {
        $crate::pass_on!(# $to store_after(at: $crate::RemoteAddr, word: u64)
            -> $crate::Result<()>);
    };
    (@ announce $to:ident) => {
        $crate::pass_on!(# $to announce(at: $crate::RemoteAddr, word: u64) -> $crate::Result<()>);
    };
    (@ load $to:ident) => {
        $crate::pass_on!(# $to load(at: $crate::RemoteAddr) -> $crate::Result<u64>);
    };
    (@ load_bytes $to:ident) => {
        $crate::pass_on!(# $to load_bytes(at: $crate::RemoteAddr, len: usize, buf: &mut $crate::Buf)
            -> $crate::Result<()>);
    };
    (@ reload $to:ident) => {
        $crate::pass_on!(# $to reload(at: $crate::RemoteAddr) -> $crate::Result<u64>);
    };
    (@ will_read $to:ident) => {
        $crate::pass_on!(# $to will_read(at: $crate::RemoteAddr) -> ());
    };
    (@ will_store $to:ident) => {
        $crate::pass_on!(# $to will_store(at: $crate::RemoteAddr, len: usize) -> ());
    };
    (@ raw $to:ident) => {
        $crate::pass_on!(# $to raw(at: $crate::RemoteAddr, len: usize) -> $crate::Result<*mut u8>);
    };
    (@ posted $to:ident) => { $crate::pass_on!(# $to posted() -> u64); };
    (@ is_settled $to:ident) => { $crate::pass_on!(# $to is_settled(mark: u64) -> bool); };
    (@ store_when_settled $to:ident) => {
        $crate::pass_on!(# $to store_when_settled(at: $crate::RemoteAddr, word: u64) -> ());
    };
    (@ take_back $to:ident) => { $crate::pass_on!(# $to take_back() -> ()); };
    (@ now_us $to:ident) => { $crate::pass_on!(# $to now_us() -> u64); };
    (@ wall_ms $to:ident) => { $crate::pass_on!(# $to wall_ms() -> u64); };
    (@ random $to:ident) => { $crate::pass_on!(# $to random() -> u64); };
    (@ pause $to:ident) => { $crate::pass_on!(# $to async pause(us: u64) -> ()); };
    (@ poll_wait $to:ident) => {
        $crate::pass_on!(# $to poll_wait(cx: &mut ::std::task::Context<'_>,
            bell: Option<$crate::RemoteAddr>) -> ());
    };
    (@ ring $to:ident) => { $crate::pass_on!(# $to ring(bells: &[$crate::RemoteAddr]) -> ()); };
    (@ is_core_wanted $to:ident) => { $crate::pass_on!(# $to is_core_wanted() -> bool); };
    (@ yield_now $to:ident) => { $crate::pass_on!(# $to async yield_now() -> ()); };
    (@ message_bytes_max $to:ident) => { $crate::pass_on!(# $to message_bytes_max() -> usize); };
    (@ address $to:ident) => { $crate::pass_on!(# $to address() -> $crate::MessageAddress); };
    (@ peer $to:ident) => {
        $crate::pass_on!(# $to peer(address: &$crate::MessageAddress)
            -> $crate::Result<Self::Peer>);
    };
    (@ send_all $to:ident) => {
        $crate::pass_on!(# $to send_all(messages: &[(Self::Peer, &[u8])]) -> $crate::Result<()>);
    };
    (@ try_receive $to:ident) => {
        $crate::pass_on!(# $to try_receive(buf: $crate::Buf)
            -> Result<(Self::Peer, $crate::Buf), $crate::Buf>);
    };
    (@ write_unreliable $to:ident) => {
        $crate::pass_on!(# $to write_unreliable(at: $crate::RemoteAddr, bytes: &[u8])
            -> $crate::Result<()>);
    };
    (# $to:ident async $method:ident($($arg:ident: $type:ty),*) -> $out:ty) => {
        #[inline]
        fn $method(&self, $($arg: $type),*) -> impl ::std::future::Future<Output = $out> + '_ {
            self.$to.$method($($arg),*)
        }
    };
    (# $to:ident $method:ident($($arg:ident: $type:ty),*) -> $out:ty) => {
        #[inline]
        fn $method(&self, $($arg: $type),*) -> $out {
            self.$to.$method($($arg),*)
        }
    };
}
