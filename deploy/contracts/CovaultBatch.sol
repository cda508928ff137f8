// SPDX-License-Identifier: Apache-2.0 OR MIT
pragma solidity 0.8.30;

/// Pays many recipients in one transaction, all or none. It has no owner and no storage, keeps nothing, and takes tokens of
/// nobody but its caller. Its calls have the signatures of disperse.app.
contract CovaultBatch {
    error LengthsDiffer();
    error WrongValue();
    error NotPaid(uint256 row);

    /// Pays the chain's coin. The value of the call must be the sum of the amounts.
    function disperseEther(address[] calldata recipients, uint256[] calldata values) external payable {
        if (recipients.length != values.length) revert LengthsDiffer();
        uint256 total;
        for (uint256 row; row < values.length; ++row) total += values[row];
        if (total != msg.value) revert WrongValue();
        for (uint256 row; row < recipients.length; ++row) {
            (bool paid, ) = recipients[row].call{value: values[row]}("");
            if (!paid) revert NotPaid(row);
        }
    }

    /// Pays a token of the caller, which has to allow it. Takes tokens that return nothing. Refuses those that give a
    /// recipient another amount than the one that was sent.
    function disperseToken(address token, address[] calldata recipients, uint256[] calldata values) external {
        if (recipients.length != values.length) revert LengthsDiffer();
        for (uint256 row; row < recipients.length; ++row) {
            address to = recipients[row];
            uint256 before = balance(token, to, row);
            (bool paid, bytes memory said) =
                token.call(abi.encodeWithSelector(0x23b872dd, msg.sender, to, values[row]));
            // A call of an address without a contract succeeds, and has no balance to read: see below.
            if (!paid || (said.length != 0 && (said.length < 32 || !abi.decode(said, (bool))))) revert NotPaid(row);
            uint256 expected = to == msg.sender ? before : before + values[row];
            if (balance(token, to, row) != expected) revert NotPaid(row);
        }
    }

    /// balanceOf(owner), of a contract that answers it.
    function balance(address token, address owner, uint256 row) private view returns (uint256) {
        (bool answered, bytes memory said) = token.staticcall(abi.encodeWithSelector(0x70a08231, owner));
        if (!answered || said.length < 32) revert NotPaid(row);
        return abi.decode(said, (uint256));
    }
}
