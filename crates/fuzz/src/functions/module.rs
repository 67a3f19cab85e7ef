//! Modules that are valid, and do what an input says.
//!
//! A module has a function of two parameters and two locals, all 64 bits long, which it exports as
//! `apply`, and another for `keep` that calls it; a memory that may grow; and a start function that
//! does nothing. The body is a list of statements on the locals; blocks nest.

use crate::input::Input;

/// Statements of a body.
const STATEMENTS_MAX: usize = 60;
/// Blocks in blocks.
const DEPTH_MAX: usize = 8;
/// Parameters and locals.
const LOCALS: usize = 4;

const I32: u8 = 0x7f;
const I64: u8 = 0x7e;
const VOID: u8 = 0x40;

/// Instructions, by the specification's names.
mod op {
    pub const UNREACHABLE: u8 = 0x00;
    pub const BLOCK: u8 = 0x02;
    pub const LOOP: u8 = 0x03;
    pub const IF: u8 = 0x04;
    pub const END: u8 = 0x0b;
    pub const BR: u8 = 0x0c;
    pub const CALL: u8 = 0x10;
    pub const LOCAL_GET: u8 = 0x20;
    pub const LOCAL_SET: u8 = 0x21;
    pub const I64_LOAD: u8 = 0x29;
    pub const I64_STORE: u8 = 0x37;
    pub const MEMORY_GROW: u8 = 0x40;
    pub const I32_CONST: u8 = 0x41;
    pub const I64_CONST: u8 = 0x42;
    /// The first of the binary ones: `i64.add`; the last is `i64.rotr`.
    pub const I64_ADD: u8 = 0x7c;
    pub const I32_WRAP: u8 = 0xa7;
    pub const I64_EXTEND: u8 = 0xac;
    pub const I64_NE: u8 = 0x52;
    pub const I64_EQZ: u8 = 0x50;
    pub const F64_ADD: u8 = 0xa0;
    pub const I64_REINTERPRET: u8 = 0xbd;
    pub const F64_REINTERPRET: u8 = 0xbf;
    pub const BULK: u8 = 0xfc;
    pub const MEMORY_FILL: u8 = 11;
}

/// The module that an input describes.
pub fn made_of(mut input: Input<'_>) -> Vec<u8> {
    let pages = input.byte() & 7;
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    let types =
        [&[3][..], &[0x60, 2, I64, I64, 1, I64], &[0x60, 2, I64, I64, 1, I32], &[0x60, 0, 0]];
    section(&mut module, 1, &types.concat());
    section(&mut module, 3, &[3, 0, 1, 2]);
    section(&mut module, 5, &[1, 0, pages]);
    section(&mut module, 7, b"\x02\x05apply\0\0\x04keep\0\x01");
    section(&mut module, 8, &[2]);
    let keep = [op::LOCAL_GET, 0, op::LOCAL_GET, 1, op::CALL, 0, op::I64_CONST, 0, op::I64_NE];
    let mut code = vec![3];
    function(&mut code, &[1, 2, I64], &body(&mut input));
    function(&mut code, &[0], &keep);
    function(&mut code, &[0], &[]);
    section(&mut module, 10, &code);
    module
}

fn section(module: &mut Vec<u8>, id: u8, content: &[u8]) {
    module.push(id);
    sized(module, content);
}

fn function(code: &mut Vec<u8>, locals: &[u8], body: &[u8]) {
    sized(code, &[locals, body, &[op::END]].concat());
}

/// Bytes, and before them how many.
fn sized(out: &mut Vec<u8>, bytes: &[u8]) {
    let mut len = bytes.len();
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.extend_from_slice(bytes);
}

fn body(input: &mut Input<'_>) -> Vec<u8> {
    let mut code = Vec::new();
    let mut depth = 0;
    for _ in 0..STATEMENTS_MAX {
        if input.is_empty() {
            break;
        }
        depth = statement(input, &mut code, depth);
    }
    code.extend(std::iter::repeat_n(op::END, depth));
    code.extend([op::LOCAL_GET, 0]);
    code
}

/// Appends a statement, and returns in how many blocks the next one is.
fn statement(input: &mut Input<'_>, code: &mut Vec<u8>, depth: usize) -> usize {
    let kind = input.below(16);
    let mut local = || input.below(LOCALS) as u8;
    let (to, a, b) = (local(), local(), local());
    let get = |local| [op::LOCAL_GET, local];
    let address = [op::LOCAL_GET, a, op::I32_WRAP];
    match kind {
        0..=2 => {
            let binary = op::I64_ADD + input.below(15) as u8;
            code.extend([&get(a)[..], &get(b), &[binary, op::LOCAL_SET, to]].concat());
        }
        3 => code.extend([op::I64_CONST, input.byte() & 0x7f, op::LOCAL_SET, to]),
        4 => {
            let sum = [op::F64_ADD, op::I64_REINTERPRET, op::LOCAL_SET, to];
            let (a, b) = (get(a), get(b));
            let float = [op::F64_REINTERPRET];
            code.extend([&a[..], &float, &b, &float, &sum].concat());
        }
        5 => code.extend([&address[..], &[op::I64_LOAD, 0, 8, op::LOCAL_SET, to]].concat()),
        6 => code.extend([&address[..], &get(b), &[op::I64_STORE, 3, 0]].concat()),
        7 => {
            let grow = [op::MEMORY_GROW, 0, op::I64_EXTEND, op::LOCAL_SET, to];
            code.extend([&address[..], &grow].concat());
        }
        8 => {
            let len = [op::LOCAL_GET, b, op::I32_WRAP];
            let fill = [op::BULK, op::MEMORY_FILL, 0];
            code.extend([&address[..], &[op::I32_CONST, to], &len, &fill].concat());
        }
        9 => code.extend([&get(a)[..], &get(b), &[op::CALL, 0, op::LOCAL_SET, to]].concat()),
        10 => {
            let unless = [op::I64_EQZ, op::IF, VOID, op::UNREACHABLE, op::END];
            code.extend([&get(a)[..], &unless].concat());
        }
        11 if depth > 0 => {
            let out = input.below(depth) as u8 + 1;
            let branch = [op::I32_WRAP, op::IF, VOID, op::BR, out, op::END];
            code.extend([&get(a)[..], &branch].concat());
        }
        12..=14 if depth < DEPTH_MAX => {
            code.extend([if kind == 12 { op::BLOCK } else { op::LOOP }, VOID]);
            return depth + 1;
        }
        _ if depth > 0 => {
            code.push(op::END);
            return depth - 1;
        }
        _ => (),
    }
    depth
}
