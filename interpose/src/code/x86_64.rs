//! The body of a function on x86-64.

use iced_x86::{Code, Decoder, DecoderError, DecoderOptions, FlowControl, Instruction, OpKind};

use super::Refusal;

/// See [`super::check`]; `body` is the whole function, mapped at `address`.
pub(super) fn check_body(body: &[u8], address: u64, need: usize) -> Result<(), Refusal> {
    let end = replaced(body, address, need)?;
    let mut decoder = Decoder::with_ip(64, body, address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        let near = matches!(
            instruction.op0_kind(),
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
        );
        if !near {
            continue;
        }
        let target = instruction.near_branch_target();
        // A call of its own entry is recursion and comes through the hook.
        let recursion = instruction.flow_control() == FlowControl::Call && target == address;
        if (address..end).contains(&target) && !recursion {
            return Err(Refusal::BranchIntoStart);
        }
    }
    Ok(())
}

/// End of the whole instructions that cover the first `need` bytes.
fn replaced(body: &[u8], address: u64, need: usize) -> Result<u64, Refusal> {
    let mut decoder = Decoder::with_ip(64, body, address, DecoderOptions::NONE);
    let mut first = true;
    while decoder.ip() < address + need as u64 {
        if !decoder.can_decode() {
            return Err(Refusal::TooShort(body.len()));
        }
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return Err(match decoder.last_error() {
                DecoderError::NoMoreBytes => Refusal::TooShort(body.len()),
                _ => Refusal::Unreadable,
            });
        }
        if instruction.code() == Code::Endbr64 {
            continue;
        }
        let jump = matches!(
            instruction.flow_control(),
            FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
        );
        if first && jump {
            return Err(Refusal::JumpAtStart);
        }
        first = false;
    }
    Ok(decoder.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x7f00_0000_1000;

    fn check(code: &[u8]) -> Result<(), Refusal> {
        check_body(code, AT, 5)
    }

    #[test]
    fn driver_prologues_pass() {
        // push rbp; mov rbp,rsp; push r12; sub rsp,16; ret
        check(&[
            0x55, 0x48, 0x89, 0xe5, 0x41, 0x54, 0x48, 0x83, 0xec, 0x10, 0xc3,
        ])
        .expect("ok");
        // cmp dword [rip+x], imm32; je +6; jmp [rip+y]; ret
        check(&[
            0x81, 0x3d, 1, 2, 3, 4, 5, 6, 7, 8, 0x74, 0x06, 0xff, 0x25, 1, 0, 0, 0, 0xc3,
        ])
        .expect("ok");
        // endbr64 first
        check(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0xc3]).expect("ok");
    }

    #[test]
    fn jumps_at_the_start_are_refused() {
        for code in [
            &[0xe9, 0, 1, 0, 0, 0xc3][..],
            &[0xeb, 0x10, 0x90, 0x90, 0x90, 0xc3],
            &[0xff, 0x25, 0, 0, 0, 0, 0xc3],
            &[0xf3, 0x0f, 0x1e, 0xfa, 0xe9, 0, 1, 0, 0, 0xc3],
        ] {
            assert_eq!(check(code), Err(Refusal::JumpAtStart), "{code:x?}");
        }
    }

    #[test]
    fn branches_into_the_start_are_refused() {
        // dec edi; mov eax, 1; jnz -> offset 2; ret
        let middle = [0xff, 0xcf, 0xb8, 1, 0, 0, 0, 0x75, 0xf9, 0xc3];
        assert_eq!(check(&middle), Err(Refusal::BranchIntoStart));
        // the same back to the entry itself
        let entry = [0xff, 0xcf, 0xb8, 1, 0, 0, 0, 0x75, 0xf7, 0xc3];
        assert_eq!(check(&entry), Err(Refusal::BranchIntoStart));
        // behind the replaced bytes is fine
        let behind = [0xff, 0xcf, 0xb8, 1, 0, 0, 0, 0x75, 0xfe, 0xc3];
        assert_eq!(check(&behind), Ok(()));
        // recursion is a call
        let recursion = [
            0xff, 0xcf, 0xb8, 1, 0, 0, 0, 0xe8, 0xf4, 0xff, 0xff, 0xff, 0xc3,
        ];
        assert_eq!(check(&recursion), Ok(()));
    }

    #[test]
    fn an_instruction_cut_by_the_end_is_too_short() {
        assert_eq!(
            check(&[0x55, 0x48, 0x89, 0xe5, 0x48]),
            Err(Refusal::TooShort(5))
        );
    }
}
