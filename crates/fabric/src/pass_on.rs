//! Endpoints that wrap another endpoint.

/// Passes methods of [`Fabric`](crate::Fabric) on to a field of the endpoint:
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
///         caps counters read_words read_bucket read read_word_and_bytes compare_swap fetch_add
///         write_unsignaled write is_mapped store_before store_after announce load load_bytes
///         reload will_store raw posted is_settled now_us wall_ms random pause yield_now => inner
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

    (@ caps $field:ident) => {
        #[inline]
        fn caps(&self) -> $crate::Caps {
            self.$field.caps()
        }
    };
    (@ counters $field:ident) => {
        fn counters(&self) -> &$crate::Counters {
            self.$field.counters()
        }
    };
    (@ read_words $field:ident) => {
        #[inline]
        fn read_words<'a>(
            &'a self,
            at: &'a [$crate::RemoteAddr],
            out: &'a mut [u64],
        ) -> impl ::std::future::Future<Output = Result<(), $crate::FabricError>> + 'a {
            self.$field.read_words(at, out)
        }
    };
    (@ read_bucket $field:ident) => {
        #[inline]
        fn read_bucket(
            &self,
            at: $crate::RemoteAddr,
            words: usize,
        ) -> impl ::std::future::Future<
            Output = Result<[u64; $crate::limits::BUCKET_WORDS_MAX], $crate::FabricError>,
        > + '_ {
            self.$field.read_bucket(at, words)
        }
    };
    (@ read $field:ident) => {
        #[inline]
        fn read(
            &self,
            at: $crate::RemoteAddr,
            len: usize,
            buf: $crate::Buf,
        ) -> impl Future<Output = ($crate::Buf, Result<(), $crate::FabricError>)> + '_ {
            self.$field.read(at, len, buf)
        }
    };
    (@ read_word_and_bytes $field:ident) => {
        #[inline]
        fn read_word_and_bytes(
            &self,
            word: $crate::RemoteAddr,
            at: $crate::RemoteAddr,
            len: usize,
            buf: $crate::Buf,
        ) -> impl Future<Output = ($crate::Buf, Result<u64, $crate::FabricError>)> + '_ {
            self.$field.read_word_and_bytes(word, at, len, buf)
        }
    };
    (@ compare_swap $field:ident) => {
        #[inline]
        fn compare_swap(
            &self,
            at: $crate::RemoteAddr,
            expect: u64,
            new: u64,
        ) -> impl ::std::future::Future<Output = Result<u64, $crate::FabricError>> + '_ {
            self.$field.compare_swap(at, expect, new)
        }
    };
    (@ fetch_add $field:ident) => {
        #[inline]
        fn fetch_add(
            &self,
            at: $crate::RemoteAddr,
            add: u64,
        ) -> impl ::std::future::Future<Output = Result<u64, $crate::FabricError>> + '_ {
            self.$field.fetch_add(at, add)
        }
    };
    (@ write_unsignaled $field:ident) => {
        #[inline]
        fn write_unsignaled(
            &self,
            at: $crate::RemoteAddr,
            bytes: &[u8],
        ) -> Result<(), $crate::FabricError> {
            self.$field.write_unsignaled(at, bytes)
        }
    };
    (@ write $field:ident) => {
        #[inline]
        fn write(
            &self,
            at: $crate::RemoteAddr,
            buf: $crate::Buf,
        ) -> impl Future<Output = ($crate::Buf, Result<(), $crate::FabricError>)> + '_ {
            self.$field.write(at, buf)
        }
    };
    (@ is_mapped $field:ident) => {
        #[inline]
        fn is_mapped(&self, region: $crate::RegionId) -> bool {
            self.$field.is_mapped(region)
        }
    };
    (@ store $field:ident) => {
        #[inline]
        fn store(
            &self,
            at: $crate::RemoteAddr,
            parts: &[&[u8]],
        ) -> Result<(), $crate::FabricError> {
            self.$field.store(at, parts)
        }
    };
    (@ store_before $field:ident) => {
        #[inline]
        fn store_before(
            &self,
            at: $crate::RemoteAddr,
            word: u64,
        ) -> Result<(), $crate::FabricError> {
            self.$field.store_before(at, word)
        }
    };
    (@ store_after $field:ident) => {
        #[inline]
        fn store_after(
            &self,
            at: $crate::RemoteAddr,
            word: u64,
        ) -> Result<(), $crate::FabricError> {
            self.$field.store_after(at, word)
        }
    };
    (@ announce $field:ident) => {
        #[inline]
        fn announce(&self, at: $crate::RemoteAddr, word: u64) -> Result<(), $crate::FabricError> {
            self.$field.announce(at, word)
        }
    };
    (@ load $field:ident) => {
        #[inline]
        fn load(&self, at: $crate::RemoteAddr) -> Result<u64, $crate::FabricError> {
            self.$field.load(at)
        }
    };
    (@ load_bytes $field:ident) => {
        #[inline]
        fn load_bytes(
            &self,
            at: $crate::RemoteAddr,
            len: usize,
            buf: &mut $crate::Buf,
        ) -> Result<(), $crate::FabricError> {
            self.$field.load_bytes(at, len, buf)
        }
    };
    (@ reload $field:ident) => {
        #[inline]
        fn reload(&self, at: $crate::RemoteAddr) -> Result<u64, $crate::FabricError> {
            self.$field.reload(at)
        }
    };
    (@ will_store $field:ident) => {
        #[inline]
        fn will_store(&self, at: $crate::RemoteAddr) {
            self.$field.will_store(at);
        }
    };
    (@ raw $field:ident) => {
        fn raw(
            &self,
            at: $crate::RemoteAddr,
            len: usize,
        ) -> Result<*mut u8, $crate::FabricError> {
            self.$field.raw(at, len)
        }
    };
    (@ posted $field:ident) => {
        #[inline]
        fn posted(&self) -> u64 {
            self.$field.posted()
        }
    };
    (@ is_settled $field:ident) => {
        #[inline]
        fn is_settled(&self, mark: u64) -> bool {
            self.$field.is_settled(mark)
        }
    };
    (@ now_us $field:ident) => {
        #[inline]
        fn now_us(&self) -> u64 {
            self.$field.now_us()
        }
    };
    (@ wall_ms $field:ident) => {
        fn wall_ms(&self) -> u64 {
            self.$field.wall_ms()
        }
    };
    (@ random $field:ident) => {
        fn random(&self) -> u64 {
            self.$field.random()
        }
    };
    (@ pause $field:ident) => {
        #[inline]
        fn pause(&self, us: u64) -> impl ::std::future::Future<Output = ()> + '_ {
            self.$field.pause(us)
        }
    };
    (@ yield_now $field:ident) => {
        #[inline]
        fn yield_now(&self) -> impl ::std::future::Future<Output = ()> + '_ {
            self.$field.yield_now()
        }
    };
}
