"""Calls a running service through the client that was generated into covault_client, and prints
what came back. tests/it/openapi.rs compares it."""

import json
import os
from uuid import UUID

from covault_client import AuthenticatedClient
from covault_client.api.signing_requests import create_signing_request, execute_signing_requests
from covault_client.api.wallets import create_wallet, get_wallet_info
from covault_client.models import (
    CreateSigningRequestRequest,
    CreateSigningRequestResponse,
    CreateWalletRequest,
    CreateWalletResponse,
    ECDSAHashFunction,
    ExecuteSigningRequestsRequest,
    ExecuteSigningRequestsResponse,
    GetWalletInfoFailure,
    GetWalletInfoRequest,
    GetWalletInfoResponse,
    NetworkTypeInput,
    RawMessageInput,
    SignatureContainer,
)
from httpx import Timeout


def main() -> None:
    client = AuthenticatedClient(
        base_url=os.environ["COVAULT_URL"],
        token=os.environ["COVAULT_TOKEN"],
        prefix="",
        auth_header_name="x-mtoken",
        timeout=Timeout(120),
    )
    made = create_wallet.sync(
        client=client,
        idempotency_key="from-python",
        body=CreateWalletRequest(
            vault_uuid=UUID(os.environ["COVAULT_VAULT"]),
            network_type=NetworkTypeInput.NETWORK_TYPE_EVM,
            ref="from-python",
        ),
    )
    assert isinstance(made, CreateWalletResponse), made
    address = made.details.address
    found = get_wallet_info.sync(client=client, body=GetWalletInfoRequest(address=address))
    assert isinstance(found, GetWalletInfoResponse), found
    message = RawMessageInput(
        from_=address,
        content="",
        ecdsa_hash_function=ECDSAHashFunction.ECDSA_HASH_FUNCTION_SHA256,
    )
    asked = create_signing_request.sync(
        client=client, body=CreateSigningRequestRequest(raw_message=message)
    )
    assert isinstance(asked, CreateSigningRequestResponse), asked
    outcome = execute_signing_requests.sync(
        client=client,
        body=ExecuteSigningRequestsRequest(uuid=UUID(asked.signing_request.uuid)),
    )
    assert isinstance(outcome, ExecuteSigningRequestsResponse), outcome
    assert isinstance(outcome.signatures, SignatureContainer), outcome
    answer = get_wallet_info.sync_detailed(client=client, body=GetWalletInfoRequest(ref="nobody's"))
    assert isinstance(answer.parsed, GetWalletInfoFailure), answer
    print(
        json.dumps(
            {
                "address": address,
                "ref": found.details.ref,
                "signatures": len(outcome.signatures.signatures),
                "refused": answer.parsed.error.message,
                "status": answer.status_code,
            }
        )
    )


main()
