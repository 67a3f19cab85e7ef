//! The operations of requests, as they stand in messages.

use zerocopy::TryFromBytes;

/// The operation of a request, as it stands in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub(super) enum Code {
    Hello = 1,
    Get,
    Contains,
    Put,
    PutIfAbsent,
    PutIfVersion,
    Delete,
    FetchAdd,
    Packet,
    ReadPacket,
    Append,
    Touch,
    TouchVersion,
    DeleteVersion,
}

/// The requests that bring a number.
pub(super) const HAVE_OPERAND: [Code; 4] =
    [Code::PutIfVersion, Code::FetchAdd, Code::TouchVersion, Code::DeleteVersion];
