/* The portable .espdl engine (../engine) behind the core's engine interface. */
#ifndef BT_PORTABLE_H
#define BT_PORTABLE_H

#include "bt_engine.h"
#include "engine.h"

typedef struct bt_portable {
    engine_target target;
    void *arena;
    size_t arena_bytes;
    engine *opened;
    char where[ENGINE_TEXT_SIZE];
    bt_node_callback on_node;
    void *context;
} bt_portable;

/* `portable` must outlive the engine; target, arena and arena_bytes are set. */
bt_engine bt_portable_engine(bt_portable *portable);

#endif
