/* Slots and what is sent into them: windowed, resumable, verified before it counts. */
#include "bt_core.h"

#include "bt_pack.h"

static bool sha_of_slot(const bt_core *core, uint32_t slot, uint32_t size, uint8_t digest[32]) {
    const bt_slot_area *area = &core->platform->slots[slot];
    if (size > area->capacity) return false;
    bt_sha256 sha;
    bt_sha256_begin(&sha);
    bt_sha256_add(&sha, area->data, size);
    bt_sha256_end(&sha, digest);
    return true;
}

void bt_slots_begin(bt_core *core) {
    const bt_platform *platform = core->platform;
    for (uint32_t i = 0; platform->label_read != NULL && i < platform->slot_count; i++) {
        uint32_t size = 0;
        uint8_t told[BT_SHA256_BYTES], digest[BT_SHA256_BYTES];
        if (platform->slots[i].kind != BT_SLOT_FLASH || !platform->label_read(platform->ctx, i, &size, told)) continue;
        if (size == 0 || !sha_of_slot(core, i, size, digest) || memcmp(told, digest, sizeof told) != 0) continue;
        core->slots[i].state = BT_SLOT_COMMITTED;
        core->slots[i].size = size;
        memcpy(core->slots[i].sha256, digest, sizeof digest);
    }
}

static bool committed(const bt_core *core, uint32_t slot, const uint8_t *sha256) {
    return slot < core->platform->slot_count && core->slots[slot].state == BT_SLOT_COMMITTED &&
           memcmp(core->slots[slot].sha256, sha256, BT_SHA256_BYTES) == 0;
}

static void clear(bt_core *core, uint32_t slot) {
    const bt_platform *platform = core->platform;
    if (core->transfer.active && core->transfer.slot == slot) core->transfer.active = false;
    memset(&core->slots[slot], 0, sizeof core->slots[slot]);
    if (platform->label_write != NULL && platform->slots[slot].kind == BT_SLOT_FLASH)
        platform->label_write(platform->ctx, slot, 0, core->slots[slot].sha256);
}

bt_status bt_have(bt_core *core, bt_reader *in, bt_writer *out) {
    const uint8_t *sha256 = bt_take(in, BT_SHA256_BYTES);
    if (sha256 == NULL) return BT_BAD_REQUEST;
    uint8_t slot = BT_NO_SLOT;
    uint32_t size = 0;
    for (uint32_t i = 0; i < core->platform->slot_count; i++) {
        if (committed(core, i, sha256)) {
            slot = (uint8_t)i;
            size = core->slots[i].size;
            break;
        }
    }
    if (memcmp(sha256, bt_canary_sha256, BT_SHA256_BYTES) == 0) slot = BT_CANARY_SLOT;
    bt_put8(out, slot != BT_NO_SLOT);
    bt_put8(out, slot);
    bt_put16(out, 0);
    bt_put32(out, size);
    return BT_OK;
}

bt_status bt_erase(bt_core *core, bt_reader *in, bt_writer *out) {
    uint8_t slot = bt_get8(in);
    (void)out;
    if (in->bad) return BT_BAD_REQUEST;
    if (slot != BT_NO_SLOT && slot >= core->platform->slot_count) return bt_fail(core, BT_BAD_DATA, "no such slot");
    for (uint32_t i = 0; i < core->platform->slot_count; i++) {
        if (slot != BT_NO_SLOT && slot != i) continue;
        if (core->model.loaded && core->model.slot == i) bt_unload(core);
        clear(core, i);
    }
    return BT_OK;
}

static void answer_begun(const bt_transfer *transfer, bt_writer *out) {
    bt_put32(out, transfer->id);
    bt_put32(out, transfer->chunks);
    bt_put_bytes(out, transfer->received, (transfer->chunks + 7) / 8);
}

bt_status bt_put_begin(bt_core *core, bt_reader *in, bt_writer *out) {
    bt_transfer *transfer = &core->transfer;
    const bt_platform *platform = core->platform;
    const uint8_t *sha256 = bt_take(in, BT_SHA256_BYTES);
    uint32_t size = bt_get32(in);
    uint8_t slot = bt_get8(in), kind = bt_get8(in), base_slot = bt_get8(in);
    bt_get8(in);
    const uint8_t *base = bt_take(in, BT_SHA256_BYTES);
    if (in->bad || sha256 == NULL || base == NULL) return BT_BAD_REQUEST;
    if (slot >= platform->slot_count || kind > BT_KIND_DATA) return bt_fail(core, BT_BAD_DATA, "no such slot or kind");
    if ((platform->slots[slot].kind == BT_SLOT_DATA) != (kind == BT_KIND_DATA))
        return bt_fail(core, BT_BAD_DATA, "the slot is for another kind of object");
    if (size == 0 || size > platform->slots[slot].capacity || size > BT_MAX_CHUNKS * BT_CHUNK_BYTES)
        return bt_fail(core, BT_TOO_LARGE, "the object does not fit into the slot");
    if (core->model.loaded && core->model.slot == slot)
        return bt_fail(core, BT_BAD_STATE, "the slot holds the loaded model");
    if (base_slot != BT_NO_SLOT && (base_slot == slot || !committed(core, base_slot, base)))
        return bt_fail(core, BT_NOT_FOUND, "the dictionary's object is not on the board");
    bool same = transfer->active && transfer->slot == slot && transfer->size == size &&
                memcmp(transfer->sha256, sha256, BT_SHA256_BYTES) == 0;
    if (!same) {
        if (transfer->active) clear(core, transfer->slot);
        clear(core, slot);
        if (!platform->slot_erase(platform->ctx, slot, size))
            return bt_fail(core, BT_FLASH_FAILED, "the slot cannot be erased");
        uint32_t id = transfer->id + 1;
        memset(transfer, 0, sizeof *transfer);
        transfer->id = id;
        transfer->slot = slot;
        transfer->size = size;
        transfer->chunks = (size + BT_CHUNK_BYTES - 1) / BT_CHUNK_BYTES;
        memcpy(transfer->sha256, sha256, BT_SHA256_BYTES);
        bt_sha256_begin(&transfer->sha);
        transfer->active = true;
        core->slots[slot].state = BT_SLOT_RECEIVING;
        core->slots[slot].size = size;
        memcpy(core->slots[slot].sha256, sha256, BT_SHA256_BYTES);
    }
    transfer->base_slot = base_slot;
    answer_begun(transfer, out);
    return BT_OK;
}

static bool received(const bt_transfer *transfer, uint32_t index) {
    return index < transfer->chunks && (transfer->received[index / 8] >> (index % 8) & 1) != 0;
}

static bt_status unpack(bt_core *core, uint8_t codec, uint32_t offset, uint32_t length, const uint8_t *data,
                        uint32_t size) {
    const bt_transfer *transfer = &core->transfer;
    const uint8_t *dictionary = NULL;
    uint32_t dictionary_size = 0;
    if (codec == BT_CODEC_RAW) {
        if (size != length) return bt_fail(core, BT_BAD_CODEC, "a raw chunk of another length");
        memcpy(core->scratch, data, length);
        return BT_OK;
    }
    if (codec > BT_CODEC_DEFLATE_BASE) return bt_fail(core, BT_BAD_CODEC, "an unknown codec");
    if (codec == BT_CODEC_DEFLATE_BASE) {
        /* The slot may have been erased since. */
        if (transfer->base_slot >= core->platform->slot_count ||
            core->slots[transfer->base_slot].state != BT_SLOT_COMMITTED)
            return bt_fail(core, BT_BAD_CODEC, "a dictionary is used, and none was agreed on");
        uint32_t base_size = core->slots[transfer->base_slot].size;
        uint32_t end = offset + length + (BT_DICTIONARY_BYTES - length) / 2;
        if (end > base_size) end = base_size;
        uint32_t begin = end > BT_DICTIONARY_BYTES ? end - BT_DICTIONARY_BYTES : 0;
        dictionary = core->platform->slots[transfer->base_slot].data + begin;
        dictionary_size = end - begin;
    }
    if (!bt_inflate(data, size, dictionary, dictionary_size, core->scratch, length))
        return bt_fail(core, BT_BAD_CODEC, "the chunk does not inflate");
    return BT_OK;
}

bt_status bt_put_chunk(bt_core *core, bt_reader *in, bt_writer *out) {
    bt_transfer *transfer = &core->transfer;
    const bt_platform *platform = core->platform;
    uint32_t id = bt_get32(in), index = bt_get32(in);
    uint8_t codec = bt_get8(in);
    bt_get8(in);
    uint32_t length = bt_get16(in);
    uint32_t size = (uint32_t)bt_left(in);
    const uint8_t *data = bt_take(in, size);
    if (in->bad || data == NULL) return BT_BAD_REQUEST;
    if (!transfer->active || transfer->id != id) return bt_fail(core, BT_BAD_STATE, "no such transfer");
    uint32_t offset = index * BT_CHUNK_BYTES;
    if (index >= transfer->chunks) return bt_fail(core, BT_BAD_DATA, "no such chunk");
    uint32_t expected = transfer->size - offset < BT_CHUNK_BYTES ? transfer->size - offset : BT_CHUNK_BYTES;
    if (length != expected) return bt_fail(core, BT_BAD_DATA, "a chunk of another length");
    if (!received(transfer, index)) {
        bt_status status = unpack(core, codec, offset, length, data, size);
        if (status != BT_OK) return status;
        if (!platform->slot_write(platform->ctx, transfer->slot, offset, core->scratch, length))
            return bt_fail(core, BT_FLASH_FAILED, "the slot cannot be written");
        transfer->received[index / 8] |= (uint8_t)(1u << index % 8);
        for (; received(transfer, transfer->first_missing); transfer->first_missing++) {
            uint32_t at = transfer->first_missing * BT_CHUNK_BYTES;
            uint32_t part = transfer->size - at < BT_CHUNK_BYTES ? transfer->size - at : BT_CHUNK_BYTES;
            bt_sha256_add(&transfer->sha, platform->slots[transfer->slot].data + at, part);
        }
    }
    uint32_t later = 0;
    for (uint32_t i = 0; i < 32; i++)
        if (received(transfer, transfer->first_missing + 1 + i)) later |= 1u << i;
    bt_put32(out, transfer->id);
    bt_put32(out, transfer->first_missing);
    bt_put32(out, later);
    return BT_OK;
}

bt_status bt_put_end(bt_core *core, bt_reader *in, bt_writer *out) {
    bt_transfer *transfer = &core->transfer;
    const bt_platform *platform = core->platform;
    uint32_t id = bt_get32(in);
    uint8_t digest[BT_SHA256_BYTES];
    if (in->bad) return BT_BAD_REQUEST;
    if (!transfer->active || transfer->id != id) return bt_fail(core, BT_BAD_STATE, "no such transfer");
    if (transfer->first_missing < transfer->chunks) return bt_fail(core, BT_BAD_STATE, "chunks are missing");
    uint8_t slot = transfer->slot;
    bt_sha256 sha = transfer->sha; /* this request may come again */
    bt_sha256_end(&sha, digest);
    if (memcmp(digest, transfer->sha256, sizeof digest) != 0) {
        clear(core, slot);
        return bt_fail(core, BT_DIGEST_MISMATCH, "what arrived has another sha256; it was thrown away");
    }
    if (platform->label_write != NULL && platform->slots[slot].kind == BT_SLOT_FLASH &&
        !platform->label_write(platform->ctx, slot, transfer->size, digest))
        return bt_fail(core, BT_FLASH_FAILED, "the slot's label cannot be written");
    transfer->active = false;
    core->slots[slot].state = BT_SLOT_COMMITTED;
    bt_put8(out, slot);
    return BT_OK;
}
