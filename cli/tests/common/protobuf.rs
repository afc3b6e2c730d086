//! As much of protobuf as it takes to look at a message without knowing its schema.

/// Value of a field.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    pub fn number(self) -> u64 {
        match self {
            Value::Number(n) => n,
            Value::Bytes(_) => panic!("bytes where a number was expected"),
        }
    }

    pub fn bytes(self) -> &'a [u8] {
        match self {
            Value::Bytes(b) => b,
            Value::Number(_) => panic!("a number where bytes were expected"),
        }
    }

    pub fn text(self) -> &'a str {
        std::str::from_utf8(self.bytes()).unwrap()
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut n = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        n |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return n;
        }
    }
    unreachable!()
}

/// Fields of a message in order.
pub fn fields(mut bytes: &[u8]) -> Vec<(u64, Value<'_>)> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => Value::Number(varint(&mut bytes)),
            1 => {
                let (n, rest) = bytes.split_at(8);
                bytes = rest;
                Value::Number(u64::from_le_bytes(n.try_into().unwrap()))
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                let (text, rest) = bytes.split_at(length);
                bytes = rest;
                Value::Bytes(text)
            }
            wire => panic!("wire type {wire}"),
        };
        out.push((key >> 3, value));
    }
    out
}

/// The first field of that number.
pub fn field(bytes: &[u8], number: u64) -> Option<Value<'_>> {
    all(bytes, number).into_iter().next()
}

/// All fields of that number.
pub fn all(bytes: &[u8], number: u64) -> Vec<Value<'_>> {
    let of_number = fields(bytes).into_iter().filter(|(n, _)| *n == number);
    of_number.map(|(_, v)| v).collect()
}

/// A field of packed varints.
pub fn packed(mut bytes: &[u8]) -> Vec<u64> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        out.push(varint(&mut bytes));
    }
    out
}
